"""Paths to the numbers of a workload and an engine, by the keys that scenarios have for them.

`workload.environment.mean` and `engine.decode.c0` are those keys; the names of the facts behind them, which carry their
units (`workload.environment_s.mean`, `engine.decode.c0_s`), lead to the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pearl.core.distribution import Distribution, Family
from pearl.errors import Fault
from pearl.scenario.units import Dimension

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FactT = TypeVar("FactT", bound="DataclassInstance")

_RENAMED = {"kv_transfer": "transfer", "bandwidth": "bandwidth_bytes_per_s"}
"""Keys whose facts have another name, beyond a unit in seconds."""
_KEYS = {name: key for key, name in _RENAMED.items()}
_EXAMPLE = "a path to a number, such as workload.turns.mean"
_SHAPES = {
    Family.CONSTANT: ("mean",),
    Family.UNIFORM: ("low", "high"),
    Family.EXPONENTIAL: ("mean", "low", "high"),
    Family.LOGNORMAL: ("mean", "cv", "low", "high"),
    Family.EMPIRICAL: ("low", "high"),
}
"""The numbers that each distribution depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A number of a fact."""

    names: tuple[str, ...]
    """Fields that lead to it."""
    dimension: Dimension | None
    """What it measures, in base units; None for counts and ratios."""
    whole: bool
    """Whether it is a whole number."""


def locate(fact: Any, path: str) -> Place | Fault:
    """The number at a dotted path, or, without a span, why there is none. A constant is its own mean."""
    names: list[str] = []
    owner = fact
    for key in path.split("."):
        if not is_dataclass(owner):
            return Fault(message=f"{path!r} leads nowhere: nothing is below {names[-1]!r}", expected=_EXAMPLE)
        known = known_fields(owner)
        name = next((name for name in _spellings(owner, key) if name in known), None)
        if name is None:
            listed = ", ".join(map(key_of, known))
            return Fault(message=f"{path!r} leads nowhere: no {key!r}", expected=f"one of {listed}")
        names.append(name)
        owner = getattr(owner, name)
    if isinstance(owner, Distribution) and owner.family is Family.CONSTANT:
        names.append("mean")
        owner = owner.mean
    if isinstance(owner, bool) or not isinstance(owner, (int, float)):
        return Fault(message=f"{path!r} is no number", expected=_EXAMPLE)
    return Place(names=tuple(names), dimension=dimension_of(names), whole=isinstance(owner, int))


def changed(fact: FactT, names: Sequence[str], value: float, *, factor: bool) -> FactT:
    """The frozen fact with one number replaced, or multiplied by a factor; whole numbers stay whole, if finite."""
    old = getattr(fact, names[0])
    new: Any
    if len(names) > 1:
        new = changed(old, names[1:], value, factor=factor)
    else:
        new = old * value if factor else value
        new = round(new) if isinstance(old, int) and math.isfinite(new) else new
    return replace(fact, **{names[0]: new})


def key_of(name: str) -> str:
    """The key that scenarios have for a field."""
    return _KEYS.get(name, name.removesuffix("_s"))


def known_fields(owner: Any) -> tuple[str, ...]:
    """The fields of a fact; of a distribution, the numbers that its shape depends on."""
    if isinstance(owner, Distribution):
        return _SHAPES[owner.family]
    return tuple(field.name for field in fields(owner))


def _spellings(owner: Any, key: str) -> tuple[str, ...]:
    if isinstance(owner, Distribution):
        return ("mean",) if key == "value" and owner.family is Family.CONSTANT else (key,)
    return (key, f"{key}_s", _RENAMED.get(key, key))


def dimension_of(names: Sequence[str]) -> Dimension | None:
    """What the number at these fields measures; None for counts and ratios."""
    if names[-1] == "cv":
        return None
    if names[-1] == "bandwidth_bytes_per_s":
        return Dimension.BANDWIDTH
    if names[-1] == "bytes_per_token":
        return Dimension.BYTES
    return Dimension.TIME if any(name.endswith("_s") for name in names) else None
