"""Calibration files: which numbers of a scenario are free, within which bounds, and what they are fitted to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pearl.core.engine import EngineProfile
from pearl.core.workload import Workload
from pearl.documents import Document, PathKey, read_document
from pearl.errors import Fault, ScenarioError
from pearl.reproduce.admitted import refusal
from pearl.reproduce.measures import Measure
from pearl.reproduce.paths import Place, changed, locate
from pearl.reproduce.ranges import range_faults, unread
from pearl.scenario.checked import in_file_order, validate_filled
from pearl.scenario.fields import MAX_QUANTITY, AnyQuantity, Flag, Name, Spec, Whole
from pearl.scenario.load import load_scenario
from pearl.scenario.schema import MetadataSpec
from pearl.scenario.units import Dimension, parse_quantity

Finite = Annotated[float, Field(strict=True)]
MIN_TOLERANCE = 1e-9
"""A nanosecond, or a billionth: no figure is known so well, and squared errors in it stay numbers."""


class Scale(StrEnum):
    """How a parameter's range is searched."""

    LINEAR = "linear"
    LOG = "log"


class ParameterSpec(Spec):
    """One free number."""

    path: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """The number's place in the scenario's `spec`, below `workload` or `engine`, such as `workload.turns.mean` or
    `engine.decode.c0`; several in a list move together."""
    low: AnyQuantity
    """Lower bound: a quantity, such as `10ms`, or a number in seconds, bytes, or bytes per second."""
    high: AnyQuantity
    """Upper bound, above the lower."""
    start: AnyQuantity | None = None
    """A first guess; absent: the middle of the range."""
    scale: Scale = Scale.LINEAR
    """`log` where its order of magnitude is open."""
    factor: Flag = False
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


def _measurable(tolerance: float) -> float:
    if tolerance < MIN_TOLERANCE:
        raise ValueError(f"expected a tolerance of at least {MIN_TOLERANCE:g}")
    return tolerance


class TargetSpec(Spec):
    """One figure to be met."""

    name: Name
    """What the report calls it."""
    measure: Measure
    """What is read from the simulation."""
    value: Annotated[AnyQuantity, Field(ge=-MAX_QUANTITY, le=MAX_QUANTITY)]
    """The figure, with the measure's unit (`230s`, `25%`), or a number in seconds, or a share as a number."""
    tolerance: Annotated[AnyQuantity, Field(gt=0, le=MAX_QUANTITY), AfterValidator(_measurable)]
    """An error of this size costs 1; the loss is the sum of squares."""
    note: str = ""
    """Where it comes from, or why its tolerance is wide."""


def _some(targets: tuple[TargetSpec, ...]) -> tuple[TargetSpec, ...]:
    """At least one, asked for once each holds: `min_length` does not count those with a fault of their own."""
    if not targets:
        raise ValueError("expected a target at least")
    return targets


class CalibrationSpec(Spec):
    """What is fitted to what."""

    scenario: Annotated[str, Field(min_length=1)]
    """The scenario to start from: a file beside this one, or a shipped scenario by name."""
    seeds: Annotated[Whole, Field(ge=1, le=1000)] = 2
    """Batches per pool; every candidate meets the same ones."""
    parameters: Annotated[Mapping[Name, ParameterSpec], Field(min_length=1, max_length=10)]
    """The free numbers, ten at most: with more, any figures can be met."""
    targets: Annotated[tuple[TargetSpec, ...], AfterValidator(_some)]
    """The figures, cheapest to simulate first: a hopeless candidate is given up on the way."""


class CalibrationDocument(Spec):
    """A calibration file."""

    apiVersion: Literal["pearl.dev/v1alpha1"]  # noqa: N815 - the field's name in the document
    """`pearl.dev/v1alpha1`."""
    kind: Literal["Calibration"]
    """`Calibration`."""
    metadata: MetadataSpec
    """Name and remarks."""
    spec: CalibrationSpec
    """What is fitted to what."""


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
    places: Mapping[str, tuple[Place, ...]]
    """The numbers that each parameter moves."""

    @property
    def start(self) -> tuple[float, ...]:
        """The first guess, as a point of the unit cube."""
        return tuple(parameter.first for parameter in self.spec.parameters.values())

    def whole(self, name: str) -> bool:
        """Whether a parameter is a whole number of the scenario, not a factor of one."""
        return not self.spec.parameters[name].factor and any(place.whole for place in self.places[name])

    def values(self, point: Sequence[float]) -> dict[str, float]:
        """The parameters at a point of the unit cube; whole numbers are whole."""
        values = {name: p.value(u) for (name, p), u in zip(self.spec.parameters.items(), point, strict=True)}
        return {name: round(value) if self.whole(name) else value for name, value in values.items()}

    def world(self, values: Mapping[str, float]) -> World:
        """The scenario's workload and engine with the parameters set; raises ScenarioError where none may be such."""
        world = self.unchecked(values)
        if fault := refusal(world.workload, world.engine):
            raise ScenarioError(fault)
        return world

    def unchecked(self, values: Mapping[str, float]) -> World:
        """The same, though no scenario file may say so."""
        world = self.base
        for name, value in values.items():
            for place in self.places[name]:
                world = changed(world, place.names, value, factor=self.spec.parameters[name].factor)
        return world


def load_calibration(path: Path) -> Calibration:
    """The calibration in a file; raises ScenarioError with every fault at its place."""
    document = read_document(path, error=ScenarioError)
    parsed = validate_filled(CalibrationDocument, document)
    beside = path.parent / parsed.spec.scenario
    scenario = load_scenario(beside if beside.is_file() else parsed.spec.scenario)
    base = World(workload=scenario.workload, engine=scenario.engine)
    faults: list[Fault] = []
    places = _places(document, parsed.spec, base, faults)
    faults += _target_faults(document, parsed.spec)
    calibration = Calibration(name=parsed.metadata.name, file=str(path), base=base, spec=parsed.spec, places=places)
    faults = faults or [*_unread_faults(document, calibration), *_range_faults(document, calibration)]
    if faults:
        raise ScenarioError(in_file_order(faults))
    return calibration


def _places(
    document: Document, spec: CalibrationSpec, base: World, faults: list[Fault]
) -> dict[str, tuple[Place, ...]]:
    """Where each parameter's paths lead; what is wrong with them, or with the units of its range, joins `faults`."""
    found: dict[str, tuple[Place, ...]] = {}
    taken: set[tuple[str, ...]] = set()
    for name, parameter in spec.parameters.items():
        own: list[Place] = []
        for path in parameter.paths:
            place = locate(base, path)
            if isinstance(place, Place) and place.names in taken:
                place = Fault(message=f"{path!r} is free twice")
            if isinstance(place, Fault):
                faults.append(replace(place, span=document.span(("spec", "parameters", name, "path"))))
                continue
            taken.add(place.names)
            own.append(place)
        found[name] = tuple(own)
        dimensions = {None if parameter.factor else place.dimension for place in own}
        for dimension in sorted(dimensions, key=str):
            faults += _unit_faults(document, ("spec", "parameters", name), ("low", "high", "start"), dimension)
    return found


def _unread_faults(document: Document, calibration: Calibration) -> Iterator[Fault]:
    """Paths to numbers that no measure depends on: any value would be as good as any other."""
    pools = [pool for target in calibration.spec.targets for pool in target.measure.pools()]
    for name, parameter in calibration.spec.parameters.items():
        for path, place in zip(parameter.paths, calibration.places[name], strict=True):
            if reason := unread(calibration.base, place, pools):
                span = document.span(("spec", "parameters", name, "path"))
                yield Fault(message=f"no target depends on {path!r}: {reason}", span=span)


def _range_faults(document: Document, calibration: Calibration) -> Iterator[Fault]:
    parameters = calibration.spec.parameters
    for name in parameters:
        for key, fault in range_faults(name, parameters, calibration.unchecked, whole=calibration.whole(name)):
            yield replace(fault, span=document.span(("spec", "parameters", name, key)))


def _target_faults(document: Document, spec: CalibrationSpec) -> Iterator[Fault]:
    for index, target in enumerate(spec.targets):
        yield from _unit_faults(document, ("spec", "targets", index), ("value", "tolerance"), target.measure.dimension)


def _unit_faults(
    document: Document, part: PathKey, keys: Sequence[str], dimension: Dimension | None
) -> Iterator[Fault]:
    """Quantities of a part whose unit is not one of `dimension`; a number without a unit is in the base unit."""
    given: Any = document.data
    for key in part:
        given = given[key]
    for key in keys:
        text = given.get(key)
        if isinstance(text, str) and (wrong := _misfit(text, dimension)) is not None:
            yield Fault(message=f"{key} is {text!r}: {wrong}", span=document.span((*part, key)))


def _misfit(text: str, dimension: Dimension | None) -> str | None:
    if _is_plain(text):
        return None
    if dimension is None:
        return "expected a plain number"
    try:
        parse_quantity(text, dimension)
    except ValueError as e:
        return str(e)
    return None


def _is_plain(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
