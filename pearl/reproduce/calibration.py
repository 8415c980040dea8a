"""Calibration files: which numbers of a scenario are free, within which bounds, and what they are fitted to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pearl.core.engine import EngineProfile
from pearl.core.workload import Workload
from pearl.documents import Document, read_document
from pearl.errors import Fault, ScenarioError
from pearl.reproduce.measures import Measure
from pearl.scenario.checked import validate_filled
from pearl.scenario.fields import Name, Spec, Whole
from pearl.scenario.load import load_scenario
from pearl.scenario.schema import MetadataSpec

Finite = Annotated[float, Field(strict=True)]


class Scale(StrEnum):
    """How a parameter's range is searched."""

    LINEAR = "linear"
    LOG = "log"


class ParameterSpec(Spec):
    """One free number."""

    path: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """Dotted path into `workload` or `engine`, such as `workload.turns.mean`; several move together."""
    low: Finite
    """Lower bound."""
    high: Finite
    """Upper bound."""
    start: Finite | None = None
    """A first guess; absent: the middle of the range."""
    scale: Scale = Scale.LINEAR
    """`log` where its order of magnitude is open."""
    factor: bool = False
    """Whether the number multiplies what the scenario has, rather than replacing it."""
    note: str = ""
    """Why it is free."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if not self.low < self.high:
            raise ValueError("low must be below high")
        if self.scale is Scale.LOG and self.low <= 0:
            raise ValueError("a log scale needs low above 0")
        if self.start is not None and not self.low <= self.start <= self.high:
            raise ValueError("start must lie between low and high")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that it moves."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def first(self) -> float:
        """Where in its range the search begins, 0 to 1."""
        if self.start is None:
            return 0.5
        if self.scale is Scale.LOG:
            return math.log(self.start / self.low) / math.log(self.high / self.low)
        return (self.start - self.low) / (self.high - self.low)

    def value(self, u: float) -> float:
        """The value at `u` of its range, 0 to 1."""
        if self.scale is Scale.LOG:
            return math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        return self.low + u * (self.high - self.low)


class TargetSpec(Spec):
    """One figure to be met."""

    name: Name
    """What the report calls it."""
    measure: Measure
    """What is read from the simulation."""
    value: Finite
    """The figure."""
    tolerance: Annotated[float, Field(gt=0, strict=True)]
    """An error of this size costs 1; the loss is the sum of squares."""
    note: str = ""
    """Where it comes from, or why its tolerance is wide."""


class CalibrationSpec(Spec):
    """What is fitted to what."""

    scenario: Annotated[str, Field(min_length=1)]
    """The scenario to start from: a file beside this one, or a shipped scenario by name."""
    seeds: Annotated[Whole, Field(ge=1, le=1000)] = 2
    """Batches per pool; every candidate meets the same ones."""
    parameters: Annotated[Mapping[Name, ParameterSpec], Field(min_length=1, max_length=10)]
    """The free numbers, ten at most: with more, any figures can be met."""
    targets: Annotated[tuple[TargetSpec, ...], Field(min_length=1)]
    """The figures, cheapest to simulate first: a hopeless candidate is given up on the way."""


class CalibrationDocument(Spec):
    """A calibration file."""

    apiVersion: Literal["pearl.dev/v1alpha1"]  # noqa: N815 - the field's name in the document
    kind: Literal["Calibration"]
    metadata: MetadataSpec
    spec: CalibrationSpec


@dataclass(frozen=True, kw_only=True)
class World:
    """The part of a scenario that is calibrated."""

    workload: Workload
    engine: EngineProfile


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A calibration file that holds: every path leads to a number."""

    name: str
    file: str
    base: World
    spec: CalibrationSpec

    @property
    def start(self) -> tuple[float, ...]:
        """The first guess, as a point of the unit cube."""
        return tuple(parameter.first for parameter in self.spec.parameters.values())

    def values(self, point: Sequence[float]) -> dict[str, float]:
        """The parameters at a point of the unit cube."""
        return {name: p.value(u) for (name, p), u in zip(self.spec.parameters.items(), point, strict=True)}

    def world(self, values: Mapping[str, float]) -> World:
        """The scenario's workload and engine with the parameters set."""
        world = self.base
        for name, value in values.items():
            parameter = self.spec.parameters[name]
            for path in parameter.paths:
                world = _with(world, path.split("."), value, factor=parameter.factor)
        return world


def load_calibration(path: Path) -> Calibration:
    """The calibration in a file; raises ScenarioError with every fault at its place."""
    document = read_document(path, error=ScenarioError)
    parsed = validate_filled(CalibrationDocument, document)
    beside = path.parent / parsed.spec.scenario
    scenario = load_scenario(beside if beside.is_file() else parsed.spec.scenario)
    base = World(workload=scenario.workload, engine=scenario.engine)
    faults = _path_faults(document, parsed.spec, base)
    if faults:
        raise ScenarioError(faults)
    return Calibration(name=parsed.metadata.name, file=str(path), base=base, spec=parsed.spec)


def _path_faults(document: Document, spec: CalibrationSpec, base: World) -> list[Fault]:
    faults = []
    taken: set[str] = set()
    for name, parameter in spec.parameters.items():
        span = document.span(("spec", "parameters", name, "path"))
        for path in parameter.paths:
            fault = _walk_fault(base, path)
            if fault is None and path in taken:
                fault = Fault(message=f"{path!r} is free twice")
            taken.add(path)
            if fault is not None:
                faults.append(replace(fault, span=span))
    return faults


def _walk_fault(base: World, path: str) -> Fault | None:
    owner: Any = base
    for key in path.split("."):
        if not is_dataclass(owner) or key not in (known := [field.name for field in fields(owner)]):
            names = ", ".join(known) if is_dataclass(owner) else "nothing below it"
            return Fault(message=f"{path!r} leads nowhere: no {key!r}", expected=f"one of {names}")
        owner = getattr(owner, key)
    if isinstance(owner, bool) or not isinstance(owner, (int, float)):
        return Fault(message=f"{path!r} is no number", expected="a path to a number, such as workload.turns.mean")
    return None


def _with(owner: Any, keys: Sequence[str], value: float, *, factor: bool) -> Any:
    """The frozen fact with one number changed; whole numbers stay whole."""
    old = getattr(owner, keys[0])
    if len(keys) > 1:
        return replace(owner, **{keys[0]: _with(old, keys[1:], value, factor=factor)})
    new = old * value if factor else value
    return replace(owner, **{keys[0]: round(new) if isinstance(old, int) else new})
