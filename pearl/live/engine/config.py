"""What an engine is told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pearl.errors import Fault, UsageError
from pearl.live.devices import DeviceProfile

MIN_LEASE_S = 2
"""vLLM counts leases in whole seconds, and one second leaves no margin below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine, for life."""

    worker: str
    model: Path
    device: DeviceProfile
    kv_port: int
    """Side channel of the KV transfer, one per engine on a host."""
    kv_port_count: int = 1
    """Ports from `kv_port` on that the worker may choose from."""
    kv_host: str = "127.0.0.1"
    kv_cache_bytes: int | None = None
    """Size of the KV cache; None lets vLLM measure, which reads wrong figures on many CPU hosts."""
    max_model_tokens: int = 2048
    """Longest prompt and output together."""
    max_sequences: int = 16
    max_batched_tokens: int = 2048
    tensor_parallel: int = 1
    weight_version: int = 0
    """Of the weights in `model`."""
    kv_lease_s: int = 30
    """How long vLLM keeps a prefilled KV cache for its decode worker."""
    kv_margin_s: float = 1.0
    """A handle expires here this long before vLLM's lease: a pull that begins late must still end in time."""

    def __post_init__(self) -> None:
        checks = {
            "kv_port": (0 < self.kv_port < 1 << 16, "1 to 65535"),
            "kv_port_count": (
                self.tensor_parallel <= self.kv_port_count <= (1 << 16) - self.kv_port or self.kv_port_count == 1,
                "at least tensor_parallel, and none past 65535",
            ),
            "kv_cache_bytes": (self.kv_cache_bytes is None or self.kv_cache_bytes > 0, "a positive number"),
            "max_model_tokens": (self.max_model_tokens > 1, "at least 2"),
            "max_sequences": (self.max_sequences > 0, "at least 1"),
            "max_batched_tokens": (self.max_batched_tokens > 0, "at least 1"),
            "tensor_parallel": (self.tensor_parallel > 0, "at least 1"),
            "weight_version": (self.weight_version >= 0, "at least 0"),
            "kv_lease_s": (self.kv_lease_s >= MIN_LEASE_S, f"at least {MIN_LEASE_S}"),
            "kv_margin_s": (0 < self.kv_margin_s < self.kv_lease_s, "positive, and shorter than kv_lease_s"),
        }
        faults = [
            Fault(message=f"engine {self.worker}: {name} is {getattr(self, name)}", expected=expected)
            for name, (good, expected) in checks.items()
            if not good
        ]
        if faults:
            raise UsageError(faults)
