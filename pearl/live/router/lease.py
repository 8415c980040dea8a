"""KV handles as leases. An expired handle can give wrong tokens without an error, so it is never dispatched.

A prefill engine keeps the KV cache of a finished prefill for a time of its own, reuses the blocks afterwards, and a
late pull then reads another request's cache. The lease here ends earlier: it counts from the *dispatch* of the
prefill, which comes before the engine's clock starts, and leaves the decode engine a margin for its pull.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pearl.live.protocol import KvHandle
from pearl.live.router.pool import Pool


class Refusal(StrEnum):
    """Why a handle is not dispatched; the decode worker then computes the prompt itself."""

    NONE = "none"
    """There is no lease: none was granted, or it was used."""
    EXPIRED = "expired"
    SOURCE_GONE = "source_gone"
    WEIGHT_VERSION = "weight_version"
    """Source or decode worker hold other weights than those that computed the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A handle with what must hold for its use; times in seconds of the router's monotonic clock."""

    handle: KvHandle
    source: str
    weight_version: int
    expires_s: float


def lease_end_s(handle: KvHandle, *, dispatched_s: float, engine_lease_s: float, margin_s: float) -> float:
    """When the router gives a handle up: before the engine that announced or was configured for a lease does."""
    kept_s = handle.lease_s if handle.lease_s is not None else engine_lease_s
    return dispatched_s + kept_s - margin_s


def refusal(lease: Lease, *, pool: Pool, decode: str, now_s: float) -> Refusal | None:
    """Why `lease` must not be used for a leg on `decode` now; None where it may."""
    if now_s >= lease.expires_s:
        return Refusal.EXPIRED
    if not pool.may_run(lease.source):
        return Refusal.SOURCE_GONE
    if {pool.weight_version(lease.source), pool.weight_version(decode)} != {lease.weight_version}:
        return Refusal.WEIGHT_VERSION
    return None


@dataclass(slots=True)
class LeaseTable:
    """At most one lease per request; taking it uses it up, so no handle is dispatched twice."""

    _leases: dict[str, Lease] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, request: str, lease: Lease) -> None:
        """Note the lease of `request`; a newer one replaces it."""
        self._leases[request] = lease

    def take(self, request: str, *, pool: Pool, decode: str, now_s: float) -> KvHandle | Refusal:
        """The handle for a leg on `decode`, or why there is none; either way the lease is gone."""
        lease = self._leases.pop(request, None)
        if lease is None:
            return Refusal.NONE
        return refusal(lease, pool=pool, decode=decode, now_s=now_s) or lease.handle

    def drop(self, request: str) -> None:
        """Forget the lease of a request that ended."""
        self._leases.pop(request, None)

    def drop_from(self, source: str) -> None:
        """Forget what a lost worker held."""
        self._leases = {request: lease for request, lease in self._leases.items() if lease.source != source}
