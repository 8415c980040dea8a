"""The Python API: `pearl.solve(scenario, policy=…, solver=…)` for notebooks and scripts, and for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pearl.core.cluster import count_gpus
from pearl.core.decision import Decision, Outcome, PathTimes
from pearl.core.event import Event, apply_event
from pearl.core.facts import LONGEST_TIME_LIMIT_S
from pearl.core.plan import Plan
from pearl.core.situation import Situation
from pearl.deciding.engine import Verdict
from pearl.deciding.explanation import explain, path_times
from pearl.errors import SolverUnavailableError, UsageError
from pearl.makespan.protocol import Predictor
from pearl.makespan.registry import get_predictor
from pearl.policy.load import load_policy
from pearl.policy.model import Policy
from pearl.scenario.event import parse_event
from pearl.scenario.load import load_scenario
from pearl.scenario.model import Scenario
from pearl.scheduler import Tick, deliberate
from pearl.solving.protocol import Limits, Solver
from pearl.solving.registry import resolve

if TYPE_CHECKING:
    from pearl.deciding.alternatives import Alternative
    from pearl.deciding.diagnosis import Diagnosis
    from pearl.deciding.sensitivity import Flip

DEFAULT_POLICY = "pearl"
DEFAULT_PREDICTOR = "network"


@dataclass(frozen=True, kw_only=True)
class Result:
    """A decision and its plan, with the explanations at hand; each is worked out when it is first asked for."""

    scenario: Scenario
    policy: Policy
    predictor: Predictor
    solver: Solver
    limits: Limits
    tick: Tick
    sets: Mapping[str, str] = field(default_factory=dict)
    event: str | None = None
    """The event given in place of the scenario's own, as it was written."""

    @property
    def verdict(self) -> Verdict:
        """What was posed and answered. A scenario always has a workload, so that there always is one."""
        assert self.tick.verdict is not None
        return self.tick.verdict

    @property
    def plan(self) -> Plan:
        """The steps, in order."""
        return self.tick.plan

    @property
    def outcome(self) -> Outcome:
        """Keep, switch, infeasible or limit."""
        return self.tick.decision.outcome

    @cached_property
    def decision(self) -> Decision:
        """The decision, with its runner-up."""
        if self.outcome is Outcome.LIMIT:
            return self.tick.decision
        return explain(self.verdict, self.solver, self.limits)

    @cached_property
    def paths(self) -> PathTimes | None:
        """Predicted parts of the makespan; None where nothing can serve."""
        return path_times(self.verdict)

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Why it is infeasible, and what would mend it; None for every other outcome."""
        if self.outcome is not Outcome.INFEASIBLE:
            return None
        from pearl.deciding.diagnosis import diagnose

        return diagnose(self.verdict, self.solver, self.limits)

    def alternatives(self, number: int) -> tuple[Alternative, ...]:
        """The best other configurations."""
        from pearl.deciding.alternatives import alternatives

        return alternatives(self.verdict, self.solver, self.limits, number=number)

    def why(self, configuration: str) -> Alternative:
        """What speaks against a configuration such as `5P3D`."""
        from pearl.deciding.alternatives import parse_counts, why_not

        return why_not(self.verdict, parse_counts(configuration), self.solver, self.limits)

    def sensitivity(self) -> tuple[Flip, ...]:
        """Errors of the profile that would flip the decision."""
        from pearl.deciding.sensitivity import sensitivity

        return sensitivity(self.verdict, self.solver, self.limits)


def solve(
    scenario: Scenario | Path | str,
    *,
    policy: Policy | Path | str | None = None,
    sets: Mapping[str, str] | None = None,
    solver: Solver | str | None = None,
    predictor: Predictor | str | None = None,
    event: Event | str | None = None,
    seed: int | None = None,
    time_limit_s: float | None = None,
) -> Result:
    """Decide what the scenario's cluster should do, and plan it.

    `policy`, `solver` and `predictor` override the scenario's and the policy's own. Raises InputError for input that
    does not hold, SolverError for a solver that is missing or wrong. Infeasible and limit are outcomes, not errors.
    """
    world = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    rules = choose_policy(world, policy, sets or {})
    chosen = choose_solver(rules, solver)
    model = choose_predictor(rules, predictor)
    seed = world.seed if seed is None else seed
    limits = Limits(time_s=_time_limit_s(time_limit_s, rules), seed=seed)
    situation = situation_of(world, event)
    tick = deliberate(situation, rules, predictor=model, solver=chosen, time_limit_s=limits.time_s, seed=seed)
    return Result(
        scenario=world,
        policy=rules,
        predictor=model,
        solver=chosen,
        limits=limits,
        tick=tick,
        sets=dict(sets or {}),
        event=event if isinstance(event, str) else None,
    )


def _time_limit_s(given: float | None, policy: Policy) -> float:
    if given is None:
        return policy.solver.time_limit_s
    if not 0 < given <= LONGEST_TIME_LIMIT_S:
        raise UsageError(f"a time limit of {given:g} s; expected more than 0 and at most {LONGEST_TIME_LIMIT_S:g} s")
    return given


def choose_policy(scenario: Scenario, policy: Policy | Path | str | None, sets: Mapping[str, str]) -> Policy:
    """The policy given, the scenario's own, or the built-in one of the paper."""
    if isinstance(policy, Policy):
        return policy
    if policy is not None:
        return load_policy(policy, sets=sets)
    if scenario.policy is None:
        return load_policy(DEFAULT_POLICY, sets=sets)
    beside = Path(scenario.file).parent / scenario.policy
    return load_policy(beside if beside.suffix and beside.is_file() else scenario.policy, sets=sets)


def choose_solver(policy: Policy, solver: Solver | str | None) -> Solver:
    """The solver given, or the first one of the policy's preference whose library is here."""
    if solver is not None:
        return resolve(solver) if isinstance(solver, str) else solver
    missing = []
    for name in policy.solver.prefer:
        try:
            return resolve(name)
        except SolverUnavailableError as e:
            missing.append(str(e))
    raise SolverUnavailableError("none of the policy's solvers is available: " + "; ".join(missing))


def choose_predictor(policy: Policy, predictor: Predictor | str | None) -> Predictor:
    """The predictor given, the policy's own, or the network model."""
    if predictor is not None and not isinstance(predictor, str):
        return predictor
    return get_predictor((policy.predictor or DEFAULT_PREDICTOR) if predictor is None else predictor)


def situation_of(scenario: Scenario, event: Event | str | None = None) -> Situation:
    """The situation that a scenario describes, after its event or the one given."""
    happened = parse_event(event, scenario.state) if isinstance(event, str) else event or scenario.event
    situation = Situation(
        state=scenario.state,
        workload=scenario.workload,
        engine=scenario.engine,
        costs=scenario.costs,
        prices_usd_per_h=scenario.prices,
        power_w=scenario.power_w,
        job_priority=scenario.job_priority,
        overlap_window_s=scenario.overlap_window_s,
        samples=scenario.forecasts,
    )
    if happened is None:
        return situation
    state = apply_event(situation.state, happened)
    held = count_gpus(state.workers)
    if scenario.max_gpus is not None and held > scenario.max_gpus:
        raise UsageError(f"after {happened.kind} the cluster holds {held} GPUs; expected at most {scenario.max_gpus}")
    return replace(situation, state=state)
