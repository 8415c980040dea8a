"""A study: several policies and seeds in the same world, run in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from pearl.api import choose_policy, choose_predictor, choose_solver, situation_of
from pearl.errors import UsageError
from pearl.scenario.load import load_scenario
from pearl.scenario.model import Scenario
from pearl.sim.experiment import Experiment, Report, run_experiment
from pearl.sim.pipeline import TrainingCost
from pearl.sim.results import Figures, figures_of
from pearl.sim.traces.availability import AvailabilityTrace
from pearl.tracking.forecasters import get_forecaster
from pearl.tracking.history import Source

TICK_S = 15.0
"""Period of decisions within a batch, for policies that follow demand: a few turns of every trajectory."""
DEMAND_SOURCES = frozenset({Source.PREFILL_DEMAND.value, Source.DECODE_DEMAND.value})


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run, by names and paths: small to send to another process, and enough to repeat it."""

    scenario: str
    policy: str | None
    seed: int
    sets: Mapping[str, str] = field(default_factory=dict)
    solver: str | None = None
    predictor: str | None = None
    trace: str | None = None
    trace_from_s: float = 0.0
    horizon_s: float | None = None
    """None: the scenario's."""
    batches: int | None = None
    forecaster: str = "observed"
    tick_every_s: float | None = None
    """Decide so often beside the events; None: TICK_S for policies that read demand forecasts, else never."""
    keep_log: bool = False


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is done; the log is empty unless it was asked for."""

    spec: RunSpec
    figures: Figures
    horizon_s: float
    report: Report


def execute(spec: RunSpec) -> Run:
    """Carry one run out; raises what the loaders and the scheduler raise."""
    scenario = load_scenario(spec.scenario)
    policy = choose_policy(scenario, spec.policy, spec.sets)
    predictor = choose_predictor(policy, spec.predictor)
    solver = choose_solver(policy, spec.solver)
    settings = scenario.simulation
    horizon_s = spec.horizon_s or settings.horizon_s
    experiment = Experiment(
        world=situation_of(scenario),
        policy=policy,
        predictor=predictor,
        solver=solver,
        training=TrainingCost(
            step_s=settings.training.step_s,
            per_token_s=settings.training.per_token_s,
            return_within_s=settings.training.return_within_s,
        ),
        horizon_s=horizon_s,
        seed=spec.seed,
        trace=trace_of(scenario, spec.trace, start_s=spec.trace_from_s, length_s=horizon_s),
        batches=spec.batches or settings.batches,
        forecaster=get_forecaster(spec.forecaster),
        tick_every_s=spec.tick_every_s or (TICK_S if policy.sources & DEMAND_SOURCES else None),
    )
    report = run_experiment(experiment)
    figures = figures_of(
        report,
        predictor=predictor.id,
        solver=solver.id,
        prices_usd_per_h=scenario.prices,
        tensor_parallel=scenario.engine.tensor_parallel,
    )
    return Run(
        spec=spec, figures=figures, horizon_s=horizon_s, report=report if spec.keep_log else replace(report, log=())
    )


def trace_of(scenario: Scenario, given: str | None, *, start_s: float, length_s: float) -> AvailabilityTrace | None:
    """The availability trace given, or the scenario's own, cut to the horizon; None where there is none."""
    from pearl.sim.traces.formats import read_availability

    if given is None and scenario.simulation.trace is None:
        return None
    path = Path(given) if given else Path(scenario.file).parent / str(scenario.simulation.trace)
    trace = read_availability(path)
    return trace.segment(start_s, min(length_s, trace.horizon_s - start_s))


Done = Callable[[Run], None]


def run_study(specs: Sequence[RunSpec], *, jobs: int, done: Done = lambda _: None) -> tuple[Run, ...]:
    """Carry the runs out on `jobs` local processes; the result keeps the order of `specs`, `done` hears of each."""
    if jobs <= 1 or len(specs) == 1:
        return tuple(_told(execute(spec), done) for spec in specs)
    with ProcessPoolExecutor(max_workers=min(jobs, len(specs))) as pool:
        waiting = {pool.submit(execute, spec): index for index, spec in enumerate(specs)}
        found: dict[int, Run] = {}
        try:
            for future in as_completed(waiting):
                found[waiting[future]] = _told(future.result(), done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return tuple(found[index] for index in range(len(specs)))


def run_study_on_ray(specs: Sequence[RunSpec], *, address: str, done: Done = lambda _: None) -> tuple[Run, ...]:
    """The same on a Ray cluster at `address`, or on one that is started here for `local`; needs the live extra."""
    try:
        import ray
    except ImportError as e:
        raise UsageError(f"runs on Ray need a library that is not here: {e} (install pearl[live])") from None
    try:
        ray.init(address=None if address == "local" else address, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as e:
        raise UsageError(f"no Ray cluster at {address!r}: {e}") from None
    try:
        remote = ray.remote(execute)
        return tuple(_told(run, done) for run in _in_order([remote.remote(spec) for spec in specs], ray.get))
    finally:
        ray.shutdown()


def _in_order(references: Sequence[object], get: Callable[[object], Run]) -> Iterator[Run]:
    for reference in references:
        yield get(reference)


def _told(run: Run, done: Done) -> Run:
    done(run)
    return run
