from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest

from pearl.core.cluster import Mode, Role
from pearl.core.problem import DecisionProblem, Hurdle, Linear, Rule, Tier
from pearl.errors import SolverContractError
from pearl.solvers.cpsat import CpSat
from pearl.solvers.enumerate import Enumerate
from pearl.solving.backend import violation
from pearl.solving.driver import recheck, solve_problem
from pearl.solving.evaluate import evaluate
from pearl.solving.formulation import assignment_of
from pearl.solving.ir import Model, Objective, Point
from pearl.solving.protocol import Answer, Capabilities, Limits, Solution, SolveStatus

from .problems import MAKESPAN, pool, three_and_one

Bend = Callable[[Model, Answer], Answer]


@dataclass
class Recorder:
    """CP-SAT, with every call kept and its answers bent from the `after`th call on."""

    bend: Bend = lambda _, answer: answer
    after: int = 0
    calls: list[tuple[Model, Objective, Limits, Point | None]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    id: str = "recorder"
    capabilities: Capabilities = field(default_factory=Capabilities)

    def library_version(self) -> str:
        return "1"

    def minimize(self, model: Model, objective: Objective, *, limits: Limits, hint: Point | None = None) -> Answer:
        self.calls.append((model, objective, limits, hint))
        answer = CpSat().minimize(model, objective, limits=Limits(), hint=hint)
        if len(self.calls) > self.after:
            answer = self.bend(model, answer)
        self.answers.append(answer)
        return answer


def cost(role: Role, each: int) -> tuple[tuple[str, Role, int], ...]:
    return (("d", role, each), ("p", role, each))


def test_tiers_are_held_before_the_next_and_targets_are_those_solved() -> None:
    problem, solver = three_and_one(), Recorder()
    found = solve_problem(problem, solver)
    assert (found.status, found.makespan_ms, found.tier_values) == (SolveStatus.OPTIMAL, 4_000, (4_000, 2))
    point = solver.answers[-1].point
    assert point is not None
    assert found.assignment == assignment_of(problem, point)
    model = solver.calls[-1][0]
    assert model.rows[-1].name == "hold[makespan]"
    assert found.build_s > 0
    assert found.solve_s > 0


def test_hints_hold_in_the_model_they_are_given_for() -> None:
    prefill = Tier(name="prefill", terms=(Linear(counts=cost(Role.PREFILL, 1)),))
    loose = replace(MAKESPAN, tolerance=Fraction(1))
    solver = Recorder()
    solve_problem(replace(three_and_one(), tiers=(loose, prefill)), solver)
    hints = [(model, hint) for model, _, _, hint in solver.calls if hint is not None]
    assert hints
    assert not any(violation(model, hint) for model, hint in hints)


def test_tolerance_is_used_for_the_next_tier_and_not_beyond() -> None:
    # Within 75 % of 4000 ms, 1P3D and 3P1D both take 7000: one prefill worker is cheapest.
    prefill = Tier(name="prefill", terms=(Linear(counts=cost(Role.PREFILL, 1)),))
    loose = replace(MAKESPAN, tolerance=Fraction(3, 4))
    problem = replace(three_and_one(), tiers=(loose, prefill), modes=(Mode.DISAGGREGATED,))
    for solver in (CpSat(), Enumerate()):
        found = solve_problem(problem, solver)
        assert found.tier_values[:2] == (7_000, 1)
    # With a tier that does not care, the tolerance of the first is not used up.
    free = replace(problem, tiers=(loose, Tier(name="nothing", terms=(Linear(),))), current_mode=None)
    moved = solve_problem(free, CpSat())
    assert moved.tier_values == solve_problem(free, Enumerate()).tier_values


def test_tolerance_left_over_is_given_back() -> None:
    # Fewest changes keeps 3P1D (7000 ms) if 75 % are allowed; 74 % do not reach it, and 2P2D costs one change.
    for percent, values in ((75, (7_000, 0)), (74, (4_000, 2))):
        problem = replace(three_and_one(), tiers=(replace(MAKESPAN, tolerance=Fraction(percent, 100)),))
        assert solve_problem(problem, CpSat()).tier_values == values
        assert solve_problem(problem, Enumerate()).tier_values == values


def test_window_is_widened_until_the_optimum_is_proved() -> None:
    # No more than half of the pool may serve: T is far above the bound that the first window starts from.
    problem = pool(64)
    counts = tuple(sorted((g.id, r, 1) for g in problem.groups for r in g.targets if r is not Role.INACTIVE))
    rule = Rule(name="half", expr=Linear(constant=-32, counts=counts))
    limited, solver = replace(problem, rules=(rule,)), Recorder()
    found = solve_problem(limited, solver)
    ends = [
        next(v.high for v in model.variables if v.name == "T")
        for model, objective, _, _ in solver.calls
        if objective.name == "makespan"
    ]
    assert len(ends) >= 2
    assert ends == sorted(ends)
    assert found.makespan_ms is not None
    assert ends[-1] >= found.makespan_ms
    prefill, decode = limited.tables.prefill_ms, limited.tables.decode_ms
    assert found.makespan_ms == min(max(prefill[n], decode[32 - n]) for n in range(1, 32))


def test_infeasible_is_said_only_of_the_full_model() -> None:
    rule = Rule(name="never", expr=Linear(constant=1))
    solver = Recorder()
    found = solve_problem(replace(pool(16), rules=(rule,)), solver)
    assert (found.status, found.assignment) == (SolveStatus.INFEASIBLE, None)
    last = next(v for v in solver.calls[-1][0].variables if v.name == "T")
    assert last.high == 10**9 - 1


def test_limit_without_a_point_is_its_own_status() -> None:
    def limit(_: Model, __: Answer) -> Answer:
        return Answer(status=SolveStatus.LIMIT, detail="time")

    found = solve_problem(three_and_one(), Recorder(bend=limit))
    assert (found.status, found.assignment, found.tier_values, found.makespan_ms) == (SolveStatus.LIMIT, None, (), None)


def test_limit_after_the_first_tier_keeps_its_point() -> None:
    def limit(_: Model, __: Answer) -> Answer:
        return Answer(status=SolveStatus.LIMIT, detail="time")

    counts = cost(Role.INACTIVE, -1)
    problem = replace(three_and_one(), tiers=(MAKESPAN, Tier(name="idle", terms=(Linear(counts=counts),))))
    found = solve_problem(problem, Recorder(bend=limit, after=1))
    assert found.status is SolveStatus.FEASIBLE
    assert found.makespan_ms == 4_000
    assert found.assignment is not None
    assert evaluate(problem, found.assignment).feasible


def test_point_that_is_not_proved_is_feasible_only() -> None:
    found = solve_problem(three_and_one(), Recorder(bend=lambda _, a: replace(a, status=SolveStatus.FEASIBLE)))
    assert found.status is SolveStatus.FEASIBLE


def _shifted(model: Model, answer: Answer) -> Answer:
    assert answer.point is not None
    return replace(answer, point=(answer.point[0] + 1, *answer.point[1:]))


def _slower(model: Model, answer: Answer) -> Answer:
    """T above the table's value, still called optimal."""
    assert answer.point is not None
    k = next(i for i, v in enumerate(model.variables) if v.name == "T")
    return replace(answer, point=tuple(value + (i == k) for i, value in enumerate(answer.point)))


@pytest.mark.parametrize(
    ("bend", "after", "message"),
    [
        (_shifted, 0, "does not hold"),
        (_slower, 0, "known\\[makespan\\] is broken"),
        (lambda _, a: replace(a, point=None), 0, "without a point"),
        (lambda _, a: Answer(status=SolveStatus.INFEASIBLE, detail="no"), 1, "a point is known"),
    ],
)
def test_solver_is_not_trusted(bend: Bend, after: int, message: str) -> None:
    with pytest.raises(SolverContractError, match=message):
        solve_problem(three_and_one(), Recorder(bend=bend, after=after))


def test_time_limit_is_shared_and_the_clock_is_an_argument() -> None:
    now = iter(range(1_000))
    solver = Recorder()
    solve_problem(three_and_one(), solver, limits=Limits(time_s=100.0, seed=5), timer=lambda: float(next(now)))
    shares = [limits.time_s for _, _, limits, _ in solver.calls]
    assert shares[0] < 50 < shares[1] < 100
    assert all(limits.seed == 5 for _, _, limits, _ in solver.calls)


def _claim(problem: DecisionProblem, **change: object) -> Solution:
    return replace(Enumerate().solve(problem, limits=Limits()), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"makespan_ms": 1}, "claims makespan"),
        ({"tier_values": (1, 2)}, "claims makespan"),
        ({"assignment": None}, "without an assignment"),
        ({"status": SolveStatus.INFEASIBLE}, "with an assignment"),
        ({"assignment": {("p", Role.PREFILL): 3}}, "are placed"),
    ],
)
def test_structured_answers_are_rechecked(change: dict[str, object], message: str) -> None:
    problem = three_and_one()
    with pytest.raises(SolverContractError, match=message):
        recheck(problem, _claim(problem, **change), solver_id="mine")


def test_gate_keeps_and_forbids_exactly() -> None:
    for ratio_ms, makespan_ms in ((3_000, 4_000), (3_001, 7_000)):
        problem = replace(three_and_one(), modes=(Mode.DISAGGREGATED,), hurdle=Hurdle(stay_ms=7_000, ratio_ms=ratio_ms))
        assert solve_problem(problem, CpSat()).makespan_ms == makespan_ms


def test_same_model_same_point() -> None:
    problem = pool(32)
    first, second = Recorder(), Recorder()
    solve_problem(problem, first)
    solve_problem(problem, second)
    assert [answer.point for answer in first.answers] == [answer.point for answer in second.answers]
