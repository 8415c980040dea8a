"""What a simulation counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from pearl.core.cluster import Role


@dataclass(slots=True, kw_only=True)
class Tally:
    """Running totals over all engines."""

    busy_s: dict[Role, float] = field(default_factory=lambda: dict.fromkeys(Role, 0.0))
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    transferred_tokens: int = 0
    transfer_s: float = 0.0
    recomputed_tokens: int = 0
    """Prefilled again after a preemption or an interruption."""
    preemptions: int = 0
    interruptions: int = 0
    """Turns that lost their engine under way and went on elsewhere."""
    prefill_steps: int = 0
    decode_steps: int = 0
