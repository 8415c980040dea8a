"""Limits and addresses of one router."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pearl.errors import Fault, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """What a router is told at its start; every wait and every buffer has a bound here."""

    model: str
    """The one name under which the model is served."""
    journal: Path | None = None
    """SQLite file of accepted requests; None keeps them in memory, and a restart then forgets them."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 lets the system choose."""
    admin_token: str | None = None
    """Bearer token of the admin routes; None shuts them."""
    eos_token_ids: frozenset[int] = frozenset()
    """The model's end tokens, so that a stream cut just after one is seen as complete."""

    slots_per_worker: int = 256
    """Legs that run on a worker at once."""
    max_queued: int = 4096
    """Requests accepted beyond the slots of the pool; past them, 429."""
    retry_after_s: int = 1
    max_tokens: int = 1 << 20
    """Largest prompt, and largest output, of one request."""
    max_body_bytes: int = 16 << 20

    call_deadline_s: float = 600.0
    """How long a call waits where its client names no deadline."""
    max_call_deadline_s: float = 3600.0
    request_lifetime_s: float = 7200.0
    """After this an accepted request fails, whoever still waits for it."""
    stall_s: float = 120.0
    """A leg without a chunk for this long is interrupted."""
    kv_lease_s: float = 30.0
    """How long engines keep a prefilled KV cache; vLLM's default for NIXL."""
    kv_margin_s: float = 5.0
    """Time the decode engine has for its pull: a handle is not dispatched in the lease's last seconds."""
    keep_finished_s: float = 3600.0
    """How long a finished request answers retries of its id."""
    shutdown_grace_s: float = 10.0
    """How long open requests may finish once the router is told to stop."""

    def __post_init__(self) -> None:
        faults = [
            Fault(message=f"router: {name} is {value}", expected=expected)
            for name, value, expected, good in self._checks()
            if not good
        ]
        if faults:
            raise UsageError(faults)

    def _checks(self) -> list[tuple[str, object, str, bool]]:
        positive = (
            "slots_per_worker",
            "retry_after_s",
            "max_tokens",
            "max_body_bytes",
            "call_deadline_s",
            "max_call_deadline_s",
            "request_lifetime_s",
            "stall_s",
            "kv_margin_s",
        )
        checks = [(name, getattr(self, name), "more than 0", getattr(self, name) > 0) for name in positive]
        not_negative = ("max_queued", "keep_finished_s", "shutdown_grace_s")
        checks += [(name, getattr(self, name), "0 or more", getattr(self, name) >= 0) for name in not_negative]
        checks.append(("model", repr(self.model), "a name", bool(self.model)))
        checks.append(("port", self.port, "0 to 65535", 0 <= self.port <= 65535))
        checks.append(("admin_token", "empty", "a secret, or None", self.admin_token != ""))
        longer = f"more than kv_margin_s ({self.kv_margin_s})"
        checks.append(("kv_lease_s", self.kv_lease_s, longer, self.kv_lease_s > self.kv_margin_s))
        return checks
