"""`pearl reproduce`: the rows, what they need, and what the command prints."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pearl.cli.main import run
from pearl.core.cluster import Counts
from pearl.core.workload import Training
from pearl.errors import UsageError
from pearl.makespan.registry import get_predictor
from pearl.reproduce import run as running
from pearl.reproduce.bench import Bench
from pearl.reproduce.measures import parse_pool
from pearl.reproduce.models import load_model
from pearl.reproduce.plot import write_plot
from pearl.reproduce.rows import Verdict, judge
from pearl.reproduce.run import NOTES, choose_targets, plan_work, read_notes
from pearl.reproduce.segments import GRACE_S, MAX_PREEMPTIBLE, MEAN_WITHIN, Segment, trace_of
from pearl.reproduce.selection import SelectionKey, select
from pearl.reproduce.simulate import Effort, Runs, Simulated, runs_for, simulated
from pearl.reproduce.targets import load_targets
from pearl.reproduce.world import POLICIES, PREDICTOR, RunFigures, RunKey, find_policy, simulate_run
from pearl.scenario.engines import load_profile

FIELDS = {
    "id", "section", "model", "setting", "unit", "published", "simulated", "relative_error", "held_out", "verdict",
    "note",
}  # fmt: skip


def target(row: str):
    return next(one for one in load_targets() if one.id == row)


def test_the_command_prints_rows_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["reproduce", "--section", "2.1", "--section", "6.5.2", "--quick", "--jobs", "1", "--format", "json"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["simulated"] is True
    assert (report["seeds"], report["horizon_s"]) == (1, 2400)
    assert next(row["id"] for row in report["rows"]) == "2.1-rollout-share-8b"
    assert len(report["rows"]) == 6
    for row in report["rows"]:
        assert row.keys() == FIELDS
        assert row["verdict"] in set(Verdict)
        assert row["held_out"] is False
    assert report["summary"]["held_out_speedups"] == 0


def test_an_unknown_section_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "--section", "7"]) == 2
    assert "no rows in section 7; sections: 2.1, 3.1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sections", "models", "faults"),
    [
        (["2.1", "9.9"], [], ["no rows in section 9.9; sections: 2.1, "]),
        ([], ["qwen3-8b", "nope"], ["no rows in model nope; models: qwen3-8b, qwen3-30b-a3b"]),
        (["2.1", "3.2"], ["qwen3-30b-a3b"], ["no rows in section 2.1 with qwen3-30b-a3b; sections: "]),
        (["2.1"], ["qwen3-8b", "qwen3-30b-a3b"], ["no rows in model qwen3-30b-a3b with 2.1; models: "]),
        (
            ["6.5.2", "9"],
            ["nope"],
            ["in section 6.5.2 with nope", "in section 9 with nope", "in model nope with 6.5.2"],
        ),
    ],
)
def test_whatever_adds_no_rows_is_refused_beside_what_does(
    sections: list[str], models: list[str], faults: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        choose_targets(sections, models)
    assert [words in str(fault) for words, fault in zip(faults, caught.value.faults, strict=True)] == [True] * len(
        faults
    )


def test_the_picture_and_the_result_are_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    one = str(tmp_path / "x.png")
    assert run(["reproduce", "--section", "6.3", "--quick", "--plot", one, "--output", one]) == 2
    assert "would hold two results" in capsys.readouterr().err
    assert run(["reproduce", "--section", "6.3", "--quick", "--plot", str(tmp_path / "x.pdf")]) == 2
    assert "no picture format '.pdf'" in capsys.readouterr().err


def test_no_more_processes_than_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Counted(ProcessPoolExecutor):
        def __init__(self, max_workers: int) -> None:
            asked.append(max_workers)
            super().__init__(max_workers=1)

    monkeypatch.setattr(running, "ProcessPoolExecutor", Counted)
    two = [target("2.1-rollout-share-8b"), target("3.1-unlimited-rollout-8b")]
    running.reproduce(two, effort=Effort.quick(), jobs=60)
    assert asked == [2]


def test_the_picture_is_a_png_of_the_gains(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        judge(target("6.3-gated-borrowing-4-8b"), Simulated(values=(0.9,)), {}),
        judge(target("6.2-over-rlboost-8b"), Simulated(values=(-0.1, 0.3)), {}),
        judge(target("2.1-rollout-share-8b"), Simulated(values=(0.8,)), {}),
    ]
    picture = tmp_path / "p.png"
    write_plot(rows, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"expected a file name in \.png"):
        write_plot(rows, tmp_path / "p.gif")
    with pytest.raises(UsageError, match="nothing to draw"):
        write_plot(rows[2:], picture)


@pytest.mark.slow
def test_a_section_of_experiments_runs_within_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["reproduce", "--section", "6.3", "--model", "qwen3-8b", "--quick", "--jobs", "2", "--format", "json"]
    assert run(args) == 0
    report = json.loads(capsys.readouterr().out)
    assert all(row["held_out"] and row["simulated"] for row in report["rows"])
    assert {row["id"] for row in report["rows"]} >= {"6.3-gated-borrowing-4-8b", "6.3-order-4-8b"}


def test_rows_share_runs() -> None:
    targets = choose_targets(["6.3"], ["qwen3-8b"])
    needed = [key for one in targets for key in runs_for(one, Effort())]
    work = plan_work(targets, Effort())
    assert len(work.runs) == len(set(needed)) < len(needed)
    assert work.alone == ()


def test_a_gain_needs_both_policies_in_every_setting() -> None:
    keys = list(runs_for(target("prorsa-rollout"), Effort(seeds=3)))
    assert len(set(keys)) == 2 * 2 * 2 * 3
    assert {key.policy for key in keys} == {"prorsa", "roll-fixed"}
    assert {key.training for key in keys} == set(Training)
    assert {key.overlap_gpus for key in keys} == {0}


def test_figures_from_runs() -> None:
    effort = Effort(seeds=1)

    def runs(row: str, rate) -> Simulated:
        one = target(row)
        figures = {key: RunFigures(throughput_traj_per_h=rate(key), makespan_s=100.0) for key in runs_for(one, effort)}
        return simulated(one, effort, Runs(figures=figures))

    by_policy = {"roll-fixed": 100.0, "forced-disaggregated": 80.0, "pearl": 190.0, "pearl-ungated": 180.0}
    gains = runs("6.3-gated-borrowing-4-8b", lambda key: by_policy[key.policy])
    assert gains.values == pytest.approx((0.9,))
    assert runs("6.3-order-4-8b", lambda key: by_policy[key.policy]).label == (
        "forced-disaggregated < pearl-ungated < pearl"
    )
    tied = by_policy | {"pearl": 180.0}
    assert runs("6.3-order-4-8b", lambda key: tied[key.policy]).label == "forced-disaggregated < pearl = pearl-ungated"
    assert runs("6.4-peak-pearl-8b", lambda key: -abs(key.batch - 96)).values == (96,)
    segments = runs(
        "6.2-over-roll-8b",
        lambda key: 100.0 if key.policy == "roll-fixed" else 200.0 + 10 * (list(Segment).index(key.segment)),
    )
    assert segments.values == pytest.approx((1.1,))


def test_notes_are_for_rows_and_every_row_that_is_missed_has_one() -> None:
    assert set(read_notes()) <= {one.id for one in load_targets()}
    assert yaml.safe_load(NOTES.read_text(encoding="utf-8")) is not None
    noted = judge(target("6.4-peak-pearl-8b"), Simulated(values=(64.0,), remark="measured"), {"6.4-peak-pearl-8b": "x"})
    assert noted.note == "measured; x"


def test_sections_are_chosen_by_prefix() -> None:
    assert {one.section for one in choose_targets(["6.5"])} == {"6.5.1", "6.5.2"}
    assert len(choose_targets([])) == len(load_targets())
    with pytest.raises(UsageError):
        choose_targets(["6.3"], ["llama"])


@pytest.mark.parametrize(("segment", "mean"), [(Segment.PLENTY, 10), (Segment.SCARCE, 6), (Segment.MEDIUM, 8)])
def test_segments_have_their_mean_and_their_limit(segment: Segment, mean: int) -> None:
    trace = trace_of(segment, 0)
    statistics = trace.statistics()
    assert abs(statistics.mean_gpus - mean) <= MEAN_WITHIN
    assert statistics.max_gpus <= MAX_PREEMPTIBLE
    assert {event.grace_s for event in trace.events if event.kind.value == "reclaim"} == {GRACE_S}
    assert trace_of(segment, 1).events != trace.events


def test_every_policy_of_the_rows_loads() -> None:
    keys = [key for one in load_targets() for key in runs_for(one, Effort(seeds=1))]
    names = {key.policy for key in keys if isinstance(key, RunKey)}
    for name in names | {path.stem for path in POLICIES.glob("*.yaml")}:
        assert find_policy(name).name == name


@pytest.mark.slow
def test_a_run_repeats_and_borrowing_helps_a_small_pool() -> None:
    key = RunKey(model="qwen3-8b", policy="pearl", rollout_gpus=4, seed=0, horizon_s=1800)
    found = simulate_run(key)
    short = replace(key, horizon_s=600)
    assert simulate_run(short) == simulate_run(short) != found
    fixed = simulate_run(RunKey(model="qwen3-8b", policy="roll-fixed", rollout_gpus=4, seed=0, horizon_s=1800))
    assert found.throughput_traj_per_h > 1.3 * fixed.throughput_traj_per_h


@pytest.mark.parametrize(("batch", "ratio"), [(48, "4P4D"), (64, "5P3D")])
def test_the_predictor_likes_the_ratios_of_section_3_3(batch: int, ratio: str) -> None:
    model = load_model("qwen3-8b")
    workload = replace(model.workload, trajectories=batch)
    tables = get_predictor(PREDICTOR).tables(workload, model.engine, workers=8)
    ratios = [Counts(prefill=prefill, decode=8 - prefill) for prefill in range(1, 8)]
    best = min(map(tables.makespan_ms, ratios))
    assert tables.makespan_ms(parse_pool(ratio)) <= 1.01 * best, "the best, or beside it and within 1 %"


def test_both_models_ran_on_gpus_of_80_gb() -> None:
    fitted, profile = load_model("qwen3-8b").engine, load_profile("qwen3-8b-h100")
    assert fitted.kv_decode_tokens == pytest.approx(profile.kv_decode_tokens, rel=0.01)
    assert load_model("qwen3-30b-a3b").engine.kv_decode_tokens == load_profile("qwen3-30b-a3b-h100").kv_decode_tokens


def test_the_larger_model_has_the_trajectories_fitted_for_the_smaller_but_for_turns_and_answers() -> None:
    large, small = load_model("qwen3-30b-a3b").workload, load_model("qwen3-8b").workload
    shared = replace(large, turns=small.turns, output_tokens=small.output_tokens)
    assert shared == small
    assert replace(large.turns, mean=0) == replace(small.turns, mean=0)


@pytest.mark.slow
def test_only_contenders_get_more_batches_and_the_best_of_all_is_one() -> None:
    world = load_model("qwen3-8b")
    found = select(SelectionKey(model="qwen3-8b", workers=4, batches=3))
    bench = Bench(workload=world.workload, engine=world.engine, seeds=range(3))
    every = [Counts(colocated=4), *(Counts(prefill=p, decode=4 - p) for p in range(1, 4))]
    seconds = {pool: bench.makespan_s(pool, world.workload.trajectories) for pool in every}
    assert found.best == min(every, key=seconds.__getitem__)
    assert found.regret == seconds[found.chosen] / seconds[found.best] - 1 >= 0


def test_the_walk_to_the_best_ratio_ends_at_the_best_of_all() -> None:
    world = load_model("qwen3-8b")
    bench = Bench(workload=world.workload, engine=world.engine, seeds=(0,))
    every = [Counts(prefill=p, decode=6 - p) for p in range(1, 6)]
    best = min(every, key=lambda pool: bench.makespan_s(pool, 24))
    assert bench.makespan_s(bench.best_ratio(6, 24), 24) <= 1.02 * bench.makespan_s(best, 24)


def test_nothing_outside_the_project_is_named() -> None:
    for path in Path(NOTES).parent.rglob("*.yaml"):
        assert str(Path(NOTES).resolve().parents[2]) not in path.read_text(encoding="utf-8")
