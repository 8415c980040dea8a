"""Device profiles: what differs between workers on GPUs and workers on CPUs. All other live code is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pearl.errors import Fault, UsageError


class SleepMethod(StrEnum):
    """How a sleeping worker gives its memory back."""

    DEVICE = "device"
    """vLLM's sleep mode, level 2: weights and KV cache leave the device; the weights are read again on waking."""
    EMULATED = "emulated"
    """The pages of the KV cache go back to the system at unchanged addresses; the weights stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """Environment and engine arguments of a kind of device."""

    name: str
    environment: Mapping[str, str]
    """Set before vLLM is imported, in the worker's process and its children."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of vLLM's engine arguments; a worker's own settings go first."""
    sleep: SleepMethod
    progress_delay_us: int | None
    """Pause of NIXL's progress thread between polls; None leaves NIXL's own, which never pauses."""


_COMMON_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

CUDA = DeviceProfile(
    name="cuda",
    environment=dict(_COMMON_ENVIRONMENT),
    engine_args={"enable_sleep_mode": True},
    sleep=SleepMethod.DEVICE,
    progress_delay_us=None,
)

CPU = DeviceProfile(
    name="cpu",
    environment={
        **_COMMON_ENVIRONMENT,
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "UCX_TLS": "tcp,self",
    },
    engine_args={"enforce_eager": True, "dtype": "float32", "block_size": 32},
    sleep=SleepMethod.EMULATED,
    progress_delay_us=1000,
)
"""Without V1 multiprocessing vLLM runs the model in the engine's process instead of one more, which saves an import.
`nobind` and one thread: several engines share the cores. TCP: `sm` has no handler for the failure of a peer.
The progress thread would spin a core per idle worker: with 1,000 µs, 0.03 instead of 0.77 core, and a faster hand-over.
"""

_PROFILES = {profile.name: profile for profile in (CUDA, CPU)}


def device_profile(name: str) -> DeviceProfile:
    """The profile of that name; raises `UsageError` for any other."""
    if name not in _PROFILES:
        raise UsageError(Fault(message=f"unknown device profile {name!r}", expected=" or ".join(sorted(_PROFILES))))
    return _PROFILES[name]
