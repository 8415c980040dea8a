"""The Python API, as a notebook would use it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import pearl
from pearl.core.decision import Outcome
from pearl.errors import InputError


def test_solve_gives_typed_results():
    result = pearl.solve("small-4gpu", policy="pearl", solver="enumerate")
    assert isinstance(result, pearl.Result)
    assert result.outcome in set(Outcome)
    assert result.decision.chosen is not None
    assert result.decision.runner_up is not None
    assert result.paths is not None
    assert result.paths.makespan_s == pytest.approx(result.decision.chosen.makespan_s, abs=1e-3)
    assert result.why("4C").counts.colocated == 4
    assert len(result.alternatives(3)) == 3


def test_a_scenario_may_be_changed_in_code():
    world = pearl.load_scenario("small-4gpu")
    more = replace(world, workload=replace(world.workload, trajectories=2 * world.workload.trajectories))
    policy = pearl.load_policy("pearl")
    assert pearl.solve(more, policy=policy).decision.chosen.makespan_s > (
        pearl.solve(world, policy=policy).decision.chosen.makespan_s
    )


def test_every_solver_finds_the_same_decision():
    answers = {name: pearl.solve("qwen3-8b-swe", solver=name).tick.decision for name in ("cpsat", "highs", "enumerate")}
    tiers = {answer.solver.tier_values for answer in answers.values()}
    assert len(tiers) == 1


def test_errors_are_pearls_own():
    with pytest.raises(InputError, match="no scenario"):
        pearl.solve("nowhere")
    with pytest.raises(AttributeError, match="no attribute 'slove'"):
        pearl.slove  # noqa: B018


def test_importing_pearl_is_free():
    code = (
        "import sys, pearl; print([m for m in ('numpy', 'pydantic', 'ortools', 'yaml', 'click') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout
    assert out.strip() == "[]"
