"""What is wrong with the range of a calibration's parameter: no scenario admits it, or no measure depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from pearl.core.cluster import Counts
from pearl.core.engine import SaturationForm
from pearl.errors import Fault
from pearl.reproduce.admitted import refusal

if TYPE_CHECKING:
    from pearl.reproduce.calibration import ParameterSpec, World
    from pearl.reproduce.paths import Place

Make = Callable[[Mapping[str, float]], "World"]
"""The scenario with some parameters set, whether it is admitted or not."""

_NEVER_READ: Mapping[tuple[str, ...], str] = {
    ("workload", "trajectories"): "each names its own batch",
    ("workload", "max_staleness"): "none trains",
    ("engine", "tensor_parallel"): "they count workers, not GPUs",
    ("engine", "fit"): "it says how the profile came about",
}
_ONE_MODE: Mapping[str, str] = {
    "kv_decode_tokens": "disaggregated",
    "transfer": "disaggregated",
    "mixed_step_factor": "colocated",
}
"""Numbers of the engine that matter in one mode only."""


def unread(world: World, place: Place, pools: Sequence[Counts]) -> str | None:
    """Why no measure of `pools` depends on a number; None where one can."""
    for names, reason in _NEVER_READ.items():
        if place.names[: len(names)] == names:
            return reason
    if place.names[-1] in ("experts", "top_k"):
        saturation = world.engine.decode.saturation
        return "form sqrt has none" if saturation and saturation.form is SaturationForm.SQRT else None
    mode = _ONE_MODE.get(place.names[1])
    used = {"colocated" if pool.colocated else "disaggregated" for pool in pools}
    return f"none is of a {mode} pool" if mode and mode not in used else None


def range_faults(
    name: str, parameters: Mapping[str, ParameterSpec], make: Make, *, whole: bool
) -> Iterator[tuple[str, Fault]]:
    """Faults of one range with the keys that they are at: its bounds one by one, then the range as a whole."""
    parameter = parameters[name]
    faults = dict(_bound_faults(name, parameters, make, whole=whole))
    if not faults and make({name: parameter.low}) == make({name: parameter.high}):
        faults = {"low": Fault(message="every number of the range gives the same scenario")}
    yield from faults.items()


def _bound_faults(
    name: str, parameters: Mapping[str, ParameterSpec], make: Make, *, whole: bool
) -> Iterator[tuple[str, Fault]]:
    for key, value in _given(parameters[name]).items():
        if whole and not value.is_integer():
            yield key, Fault(message=f"{key} is {value:g}", expected="a whole number, as the scenario's")
        elif fault := _refused(name, value, parameters, make):
            yield (
                key,
                Fault(message=f"{key} is {value:g}; no scenario admits it: {fault.message}", expected=fault.expected),
            )


def _given(parameter: ParameterSpec) -> dict[str, float]:
    given = {"low": parameter.low, "high": parameter.high}
    return given if parameter.start is None else {**given, "start": parameter.start}


def _refused(name: str, value: float, parameters: Mapping[str, ParameterSpec], make: Make) -> Fault | None:
    """Why no scenario has this value, neither with the other numbers as they are nor with any of their bounds."""
    fault = _refusal(make({name: value}))
    others = {other: (parameter.low, parameter.high) for other, parameter in parameters.items() if other != name}
    if fault is None or not others:
        return fault
    corners = (dict(zip(others, bounds, strict=True)) for bounds in product(*others.values()))
    return fault if all(_refusal(make({name: value, **corner})) for corner in corners) else None


def _refusal(world: World) -> Fault | None:
    return refusal(world.workload, world.engine)
