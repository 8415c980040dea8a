"""Hand-over of a KV cache between engines. Every worker can prefill and decode: a role is how a request is routed.

A handle carries its own limits next to the engine's parameters, since vLLM gives wrong tokens, and no error, for a
handle that expired: until when it may be pulled, on wall clocks, and the version of the weights that computed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pearl.live.protocol import EngineFailedError, KvHandle

PROGRESS_DELAY_ENV = "PEARL_NIXL_PROGRESS_DELAY_US"
"""Pause of NIXL's progress thread between polls, for the engine's processes."""
REGISTRATION = "pearl_registration"
"""Key of a request's parameters that brings a new registration to the scheduler's side of the connector."""
_LIMITS = "pearl"
"""Key of the limits within a handle's parameters."""


class Roles(Protocol):
    """How an engine is told to keep a KV cache for another, or to pull one."""

    def keep_params(self) -> Mapping[str, Any]:
        """For a prefill whose KV cache another engine will pull."""
        ...

    def names_kept(self, params: Mapping[str, Any]) -> bool:
        """Whether the parameters that came with a leg's last output name a KV cache that the engine keeps."""
        ...

    def connector(self) -> Mapping[str, Any]:
        """The KV-transfer configuration of every engine of the pool."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlRoles:
    """NIXL with `kv_both`: any engine serves either role, per request. Deprecated in vLLM (#43807), hence the seam."""

    lease_s: int

    def keep_params(self) -> Mapping[str, Any]:
        """The order to prefill for a remote decode."""
        return {"do_remote_decode": True, "do_remote_prefill": False}

    def names_kept(self, params: Mapping[str, Any]) -> bool:
        """True for what the next engine is to pull."""
        return bool(params.get("do_remote_prefill"))

    def connector(self) -> Mapping[str, Any]:
        """PEARL's NIXL connector; a failed pull fails the leg, which is then retried without the handle."""
        return {
            "kv_connector": "PearlNixlConnector",
            "kv_connector_module_path": "pearl.live.engine.nixl",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {"kv_lease_duration": self.lease_s},
        }


def make_handle(
    params: Mapping[str, Any], *, worker: str, weight_version: int, now_s: float, keep_s: float
) -> KvHandle:
    """The handle for a KV cache kept from `now_s` (wall clock) for `keep_s` seconds."""
    limits = {"worker": worker, "weight_version": weight_version, "expires_s": now_s + keep_s}
    return KvHandle(params={**params, _LIMITS: limits}, lease_s=keep_s)


def open_handle(handle: KvHandle, *, weight_version: int, now_s: float) -> Mapping[str, Any]:
    """The engine's own parameters; raises `EngineFailedError` for a handle that is expired or of other weights."""
    limits = handle.params.get(_LIMITS)
    if not isinstance(limits, Mapping):
        raise EngineFailedError("a KV handle without limits: it was not made by a PEARL worker")
    if now_s >= float(limits["expires_s"]):
        raise EngineFailedError(f"the KV handle of {limits['worker']} expired {now_s - limits['expires_s']:.1f} s ago")
    if limits["weight_version"] != weight_version:
        raise EngineFailedError(
            f"the KV handle of {limits['worker']} is of weights {limits['weight_version']}, not {weight_version}"
        )
    return {key: value for key, value in handle.params.items() if key != _LIMITS}
