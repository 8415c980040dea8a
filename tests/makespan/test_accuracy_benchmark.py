"""The benchmark that judges predictors: what it counts as regret, and that it looks where the best may be."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.makespan_accuracy import from_json, plot, report, report_classes, report_worst
from benchmarks.makespan_accuracy import run_case as run
from pearl.core.cluster import Counts, Mode
from pearl.makespan.registry import get_predictor
from pearl.sim.batch import simulate_batch

SEED = 8071
"""A small scenario of the grid."""


@pytest.fixture(scope="module")
def result():
    return run((SEED, 2))


def judged(runs, *, choice=0, predicted=None):
    """A result with these simulated runs."""
    data = {
        "seed": SEED,
        "labels": [f"{index}" for index in range(len(runs))],
        "runs": runs,
        "predicted": {"network": predicted or [run[0] for run in runs], "bubble": [run[0] for run in runs]},
        "choice": {"network": choice, "bubble": 0},
        "grid": len(runs),
    }
    return from_json(data)


def test_regret_is_of_the_chosen_over_the_best_and_errors_of_predicted_over_simulated():
    one = judged([[10.0, 10.0], [8.0, 12.0], [16.0, 16.0]], choice=2, predicted=[11.0, 9.0, 16.0])
    assert one.regret("network") == pytest.approx(0.6)
    assert one.errors("network") == pytest.approx([0.1, -0.1, 0.0])


def test_luck_counts_as_regret_but_not_as_fair_regret():
    rng = np.random.default_rng(0)
    alike = [judged(rng.normal(10, 1, size=(12, 4)).tolist()) for _ in range(300)]
    assert np.mean([one.regret("network") for one in alike]) > 0.05, "no choice is better than any other"
    assert abs(np.mean([one.fair_regret("network") for one in alike])) < 0.02


def test_a_real_difference_counts_as_fair_regret_too():
    rng = np.random.default_rng(0)
    means = np.array([[12.0], [10.0], [14.0]])
    worse = [judged((means + rng.normal(0, 0.2, size=(3, 4))).tolist()) for _ in range(100)]
    assert np.mean([one.fair_regret("network") for one in worse]) == pytest.approx(0.2, abs=0.02)


def test_the_choice_is_the_best_predicted_of_every_configuration(result):
    case = result.case
    for name, index in result.choice.items():
        tables = get_predictor(name).tables(case.workload, case.engine, workers=case.workers)
        best = min(tables.makespan_ms(counts) for counts in case.every_configuration)
        chosen = next(counts for counts in case.every_configuration if counts.label() == result.labels[index])
        assert tables.makespan_ms(chosen) == best


def test_all_configurations_meet_the_same_seeds_and_the_best_ratio_has_its_neighbours(result):
    case = result.case
    by_label = {counts.label(): counts for counts in case.every_configuration}
    for label, runs in zip(result.labels, result.runs, strict=True):
        again = simulate_batch(case.workload, case.engine, counts=by_label[label], seed=1).makespan_s
        assert runs == pytest.approx((runs[0], again))
    ratios = [label for label in result.labels if by_label[label].mode is Mode.DISAGGREGATED]
    best = min(ratios, key=lambda label: result.simulated[result.labels.index(label)])
    step = max(1, round(case.workers / 16))
    for prefill in (by_label[best].prefill - step, by_label[best].prefill + step):
        if 0 < prefill < case.workers:
            assert Counts(prefill=prefill, decode=case.workers - prefill).label() in result.labels


def test_results_are_kept_and_read_back(result):
    again = from_json(json.loads(json.dumps(result.to_json())))
    assert again == result
    assert again.regret("network") == result.regret("network")


def test_the_report_names_every_scenario_so_that_it_can_be_run_again(result, capsys):
    report([result])
    report_classes([result])
    report_worst([result], 1)
    printed = capsys.readouterr().out
    assert "always colocated" in printed
    assert f"{result.seed}  {result.case}" in printed
    assert "mixture of experts" in printed or "dense" in printed


@pytest.mark.slow
def test_the_picture(result, tmp_path):
    pytest.importorskip("matplotlib")
    plot([result], tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
