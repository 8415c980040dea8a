"""Whether scenarios admit what a calibration makes of their workload and engine: by their own schema and checks."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

from pearl.core.distribution import Distribution, Family
from pearl.core.engine import EngineProfile
from pearl.core.workload import Workload
from pearl.documents import Document, validate
from pearl.errors import Fault, ScenarioError
from pearl.reproduce.paths import dimension_of, key_of, known_fields
from pearl.scenario.engine_schema import EngineSpec
from pearl.scenario.fields import Spec
from pearl.scenario.parts import build_workload
from pearl.scenario.schema import WorkloadSpec
from pearl.scenario.units import BASE_UNITS

_SAID = ("name", "fit")
"""What is said of a profile beside its numbers; `name` need not be one that a file may give."""


class _Candidate(Spec):
    """The parts of a scenario that a calibration changes."""

    workload: WorkloadSpec
    engine: EngineSpec


def refusal(workload: Workload, engine: EngineProfile) -> Fault | None:
    """What a scenario file that says the same would be refused for, without its place; None if it would be read."""
    data = {"workload": _section(workload), "engine": _section(engine)}
    document = Document(file="", text="", data=data, spans={}, key_spans={})
    try:
        parsed = validate(_Candidate, document, error=ScenarioError)
    except ScenarioError as e:
        faults = list(e.faults)
    else:
        _, faults = build_workload(parsed.workload, document, ("workload",))
    return Fault(message=faults[0].message, expected=faults[0].expected) if faults else None


def _section(fact: Any, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """A fact as a scenario's section; `names` are the fields that lead to it. What is not set is left out."""
    if isinstance(fact, Distribution):
        return {"dist": fact.family.value, **_shape(fact, names)}
    values = {name: getattr(fact, name) for name in known_fields(fact) if names or name not in _SAID}
    return {key_of(name): _value(value, (*names, name)) for name, value in values.items() if value is not None}


def _shape(fact: Distribution, names: tuple[str, ...]) -> dict[str, Any]:
    if fact.family is Family.CONSTANT:
        return {"value": _value(fact.mean, names)}
    given = {name: getattr(fact, name) for name in known_fields(fact)}
    if math.isinf(fact.high):
        del given["high"]
    shape = {name: _value(value, (*names, name)) for name, value in given.items()}
    if fact.family is Family.EMPIRICAL:
        shape["values"] = [_value(value, names) for value in fact.values]
    return shape


def _value(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value
    if not isinstance(value, (int, float)):
        return _section(value, names)
    dimension = dimension_of(names)
    return value if dimension is None else f"{value!r} {BASE_UNITS[dimension]}"
