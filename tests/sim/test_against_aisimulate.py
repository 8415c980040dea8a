"""The ranking of configurations against figures of a public simulator (AISimulate, Qwen3-8B on 8 H200)."""

from __future__ import annotations

from statistics import mean

import pytest

from benchmarks.aisimulate import (
    CONFIGURATIONS,
    PINNED,
    PUBLISHED_S,
    RERUN_S,
    RERUN_SEEDS,
    agrees,
    best_unpinned,
    row,
    simulated_s,
    spearman,
    trajectories,
    with_overheads,
)
from pearl.scenario.engines import load_profile

ENGINE = load_profile("qwen3-8b-h200")


@pytest.mark.slow
def test_the_published_ranking():
    ours = simulated_s(ENGINE, seeds=range(4), final_answer=False)
    assert agrees(ours, PUBLISHED_S)
    assert ours[PINNED] < ours["8C"]


@pytest.mark.slow
def test_the_ranking_and_the_level_on_the_same_trajectories():
    theirs = {label: mean(figures) for label, figures in RERUN_S.items()}
    assert agrees(simulated_s(ENGINE, seeds=RERUN_SEEDS, final_answer=True), theirs)
    alike = simulated_s(with_overheads(ENGINE), seeds=RERUN_SEEDS, final_answer=True)
    assert agrees(alike, theirs)
    assert mean(abs(alike[label] / theirs[label] - 1) for label in CONFIGURATIONS) < 0.08


def test_a_row_of_n_turns_is_n_plus_one_answers_over_there():
    for plain, longer in zip(trajectories(0, final_answer=False), trajectories(0, final_answer=True), strict=True):
        assert len(longer) == len(plain) + 1
        written = row(len(plain))
        assert len(written["assistant_response_length"]) == written["num_turns"] == len(plain)
        assert longer[0].new_prompt_tokens == written["input_prompt_length"]


def test_agreement_is_lost_with_another_mode_a_ratio_two_workers_off_or_other_ranks():
    assert agrees(PUBLISHED_S, PUBLISHED_S)
    assert spearman(PUBLISHED_S, PUBLISHED_S) == 1
    assert spearman(PUBLISHED_S, {label: -seconds for label, seconds in PUBLISHED_S.items()}) == -1
    assert best_unpinned(PUBLISHED_S) == CONFIGURATIONS["4P4D"]
    assert not agrees({**PUBLISHED_S, "8C": 91.0}, PUBLISHED_S)
    assert agrees({**PUBLISHED_S, "3P5D": 91.0}, PUBLISHED_S)
    assert not agrees({**PUBLISHED_S, "2P6D": 91.0}, PUBLISHED_S)
    assert not agrees({**PUBLISHED_S, "5P3D": 300.0, "3P5D": 250.0}, PUBLISHED_S)
