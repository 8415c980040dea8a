"""The conditions that every problem sets beside the policy's rules, in words; documented in docs/decisions.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pearl.core.problem import Rule
from pearl.solving.evaluate import Builtin

WORDS: Mapping[str, str] = {
    Builtin.ONE_MODE: "all workers that serve are colocated, or some prefill and all others decode",
    Builtin.ALLOWED_MODE: "the policy allows the mode",
    Builtin.REACHABLE: "the workers that serve can finish the batch",
    Builtin.FIXED_COUNTS: "the workers of each role are those asked for",
    Builtin.EXCLUDED_COUNTS: "the configuration is another than those shown already",
    Builtin.HYSTERESIS: "a change gains its threshold over staying",
    Builtin.COOLDOWN: "no change of a kind is made in its cooldown",
    Builtin.BORROW_LIMIT: "no more training GPUs are borrowed than the policy lends now",
    Builtin.BORROW_GATE: "training GPUs are borrowed only where that pays",
}
"""What holds in every answer, by the name under which a decision reports that staying would break it."""


def in_words(names: Iterable[str], rules: Sequence[Rule]) -> tuple[str, ...]:
    """`one_mode (…)` for each name of a broken condition or rule, a rule in its own words."""
    said = {rule.name: rule.message or rule.text for rule in rules}
    return tuple(f"{name} ({text})" if (text := WORDS.get(name) or said.get(name)) else name for name in names)
