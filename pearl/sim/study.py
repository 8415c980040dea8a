"""A study: several policies and seeds in the same world, run in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pearl.api import choose_policy, choose_predictor, choose_solver, situation_of
from pearl.deciding.posing import pose
from pearl.errors import Fault, UsageError, every_fault
from pearl.policy.labels import labels_of
from pearl.policy.model import Policy
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
ROUNDING = 1e-9
"""Share of a horizon by which a trace may fall short of it."""
DEMAND_SOURCES = frozenset({Source.PREFILL_DEMAND.value, Source.DECODE_DEMAND.value})


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run, by names and paths: small to send to another process, and enough to repeat it."""

    scenario: str
    policy: str | None
    seed: int
    label: str | None = None
    """What results call the policy; None: its own name."""
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
class InForce:
    """What a run was carried out with, once every default was filled in."""

    scenario: str
    scenario_sha256: str
    trace: str | None
    """Path of the availability trace, the scenario's own included."""
    horizon_s: float
    """Longest time to simulate."""
    batches: int | None
    policy: str
    """Its own name."""
    policy_file: str
    policy_sha256: str
    tick_s: float | None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is done; the log is empty unless it was asked for."""

    spec: RunSpec
    in_force: InForce
    figures: Figures
    report: Report


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """A run that could begin."""

    experiment: Experiment
    in_force: InForce


def set_up(spec: RunSpec) -> SetUp:
    """Read what a run needs; raises what the loaders raise, and UsageError where the trace does not cover the run."""
    scenario = load_scenario(spec.scenario)
    policy = choose_policy(scenario, spec.policy, spec.sets)
    settings = scenario.simulation
    in_force = InForce(
        scenario=scenario.name,
        scenario_sha256=scenario.sha256,
        trace=_trace_file(scenario, spec.trace),
        horizon_s=spec.horizon_s or settings.horizon_s,
        batches=spec.batches or settings.batches,
        policy=policy.name,
        policy_file=policy.file,
        policy_sha256=policy.sha256,
        tick_s=spec.tick_every_s or (TICK_S if policy.sources & DEMAND_SOURCES else None),
    )
    experiment = Experiment(
        world=situation_of(scenario),
        policy=policy,
        predictor=choose_predictor(policy, spec.predictor),
        solver=choose_solver(policy, spec.solver),
        training=TrainingCost(
            step_s=settings.training.step_s,
            per_token_s=settings.training.per_token_s,
            return_within_s=settings.training.return_within_s,
        ),
        horizon_s=in_force.horizon_s,
        seed=spec.seed,
        trace=_trace(in_force.trace, start_s=spec.trace_from_s, length_s=in_force.horizon_s),
        batches=in_force.batches,
        forecaster=get_forecaster(spec.forecaster),
        tick_every_s=in_force.tick_s,
    )
    return SetUp(experiment=experiment, in_force=in_force)


def execute(spec: RunSpec) -> Run:
    """Carry one run out; raises what `set_up` and the scheduler raise."""
    ready = set_up(spec)
    experiment = ready.experiment
    report = run_experiment(experiment)
    figures = figures_of(
        report,
        predictor=experiment.predictor.id,
        solver=experiment.solver.id,
        prices_usd_per_h=experiment.world.prices_usd_per_h,
        tensor_parallel=experiment.world.engine.tensor_parallel,
        power_w=experiment.world.power_w,
    )
    return Run(
        spec=spec,
        in_force=ready.in_force,
        figures=replace(figures, policy=spec.label or figures.policy),
        report=report if spec.keep_log else replace(report, log=()),
    )


def prepare(specs: Sequence[RunSpec]) -> tuple[RunSpec, ...]:
    """The same runs with a label for each policy that tells it from the others.

    Every input is read, and every policy bound to the scenario, so that no run is lost to a fault of a later one.
    Raises InputError with the faults of all of them.
    """
    found: dict[str | None, Policy] = {}

    def check(spec: RunSpec) -> None:
        experiment = set_up(spec).experiment
        world = experiment.world
        assert world.workload is not None, "a scenario has a workload"
        pose(world, world.workload, experiment.policy, experiment.predictor)
        found[spec.policy] = experiment.policy

    one_each = {spec.policy: spec for spec in reversed(specs)}
    every_fault(partial(check, one_each[policy]) for policy in dict.fromkeys(spec.policy for spec in specs))
    labels = labels_of(found)
    return tuple(replace(spec, label=labels[spec.policy]) for spec in specs)


def _trace_file(scenario: Scenario, given: str | None) -> str | None:
    if given is not None or scenario.simulation.trace is None:
        return given
    return str(Path(scenario.file).parent / scenario.simulation.trace)


def _trace(file: str | None, *, start_s: float, length_s: float) -> AvailabilityTrace | None:
    """The part of the trace that the run lies in; raises UsageError where it does not cover the run."""
    from pearl.sim.traces.formats import read_availability

    if file is None:
        if start_s:
            raise UsageError(f"a start at {start_s:g} s of a trace, and there is none; give --trace as well")
        return None
    trace = read_availability(Path(file))
    left_s = trace.horizon_s - start_s
    if left_s < length_s * (1 - ROUNDING):
        where = f" from {start_s:g} s on" if start_s else ""
        hint = f"--horizon {left_s:g} at most" if left_s > 0 else f"it ends at {trace.horizon_s:g} s"
        message = f"{file}{where} holds {max(0.0, left_s):g} s of availability, and {length_s:g} s are to be simulated"
        raise UsageError(Fault(message=message, hint=hint))
    return trace.segment(start_s, min(length_s, left_s))


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
