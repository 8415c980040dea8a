"""Fits the free parameters of a calibration file, in parallel, and reports how far each target was met."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from pearl.errors import ScenarioError, UsageError
from pearl.reproduce.bench import Bench
from pearl.reproduce.calibration import Calibration, TargetSpec

Told = Callable[[str], None]
Map = Callable[[Callable[[Mapping[str, float]], float], Sequence[Mapping[str, float]]], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Met:
    """A target and what the fitted scenario gives."""

    name: str
    target: float
    fitted: float
    tolerance: float

    @property
    def loss(self) -> float:
        """Squared error in tolerances."""
        error = (self.fitted - self.target) / self.tolerance
        return error * error


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The outcome of a search, and what repeats it."""

    calibration: Calibration
    seed: int
    budget: int
    parameters: Mapping[str, float]
    targets: tuple[Met, ...]

    @property
    def loss(self) -> float:
        """Sum over the targets."""
        return math.fsum(met.loss for met in self.targets)


def calibrate(calibration: Calibration, *, budget: int, seed: int, jobs: int = 1, told: Told = lambda _: None) -> Fit:
    """Search for `budget` evaluations; the result depends on the seed, not on `jobs`.

    Raises UsageError where no candidate could be simulated.
    """
    from pearl.reproduce.search import GENERATION, minimise

    with _mapper(min(jobs, budget, GENERATION)) as run:

        def losses(points: Sequence[tuple[float, ...]], bound: float) -> Sequence[float]:
            found = run(partial(loss_of, calibration, bound=bound), [calibration.values(point) for point in points])
            for loss in found:
                told(f"loss {loss:.3f}" if loss <= bound else "given up")
            return found

        best, loss = minimise(losses, start=calibration.start, budget=budget, seed=seed)
    if math.isinf(loss):
        raise UsageError(f"{calibration.file}: no point of the ranges could be simulated")
    values = {name: _shown(value) for name, value in calibration.values(best).items()}
    return Fit(
        calibration=calibration, seed=seed, budget=budget, parameters=values, targets=tuple(met(calibration, values))
    )


def loss_of(calibration: Calibration, values: Mapping[str, float], *, bound: float = math.inf) -> float:
    """The loss at `values`, or its part so far once that exceeds `bound`.

    Infinite where a pool cannot serve, or where no scenario may say so: bounds that hold may exclude each other.
    """
    total = 0.0
    try:
        for one in met(calibration, values):
            total += one.loss
            if total > bound:
                break
    except (ScenarioError, UsageError):
        return math.inf
    return total


def met(calibration: Calibration, values: Mapping[str, float]) -> Iterator[Met]:
    """The targets beside what the scenario gives with `values`, in order, each simulated when it is asked for."""
    world = calibration.world(values)
    bench = Bench(workload=world.workload, engine=world.engine, seeds=range(calibration.spec.seeds))
    for target in calibration.spec.targets:
        yield _met(target, bench)


def _shown(value: float) -> float:
    """A value to the digits that a search can tell; whole numbers as they are."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _met(target: TargetSpec, bench: Bench) -> Met:
    return Met(name=target.name, target=target.value, fitted=target.measure.read(bench), tolerance=target.tolerance)


@contextmanager
def _mapper(jobs: int) -> Iterator[Map]:
    if jobs <= 1:
        yield lambda function, items: [function(item) for item in items]
        return
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        try:
            yield lambda function, items: list(pool.map(function, items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
