"""The project's own copy of the published figures, against the shared one where it is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pearl.reproduce.targets import Role, load_targets

SHARED = Path(__file__).resolve().parents[3] / "shared" / "paper-targets.yaml"
CALIBRATED_SECTIONS = {"2.1", "3.1", "3.2", "3.3", "6.5.2"}
SHORT = {"Qwen3-8B": "8b", "Qwen3-30B-A3B": "30b"}


def published(shared: dict) -> Iterator[tuple[str, object]]:
    """Row ids and figures, as the shared file says them."""
    (share,) = shared["rollout_share"]
    yield "2.1-rollout-share-8b", share["rollout_share_of_step_time"]
    half, eight, unlimited = shared["scaling"]
    yield "3.1-plus-half-8b", half["latency_change"]
    yield "3.1-eight-more-8b", eight["latency_change"]
    yield "3.1-unlimited-rollout-8b", unlimited["rollout_s"]
    yield "3.1-unlimited-idle-8b", unlimited["training_gpu_idle"]
    (mix,) = shared["interference"]
    yield "3.2-prefill-tokens-30b", mix["prefill_token_share"]
    yield "3.2-prefill-time-30b", mix["prefill_time_share"]
    small, large, middle, usual = shared["mode_tradeoff"]
    yield "3.3-batch-32-8b", small["gain_over_colocated"]
    yield "3.3-batch-96-8b", large["gain_over_disaggregated"]
    yield "3.3-batch-48-ratio-8b", middle["best_ratio"]
    yield "3.3-batch-64-ratio-8b", usual["best_ratio"]
    for row in shared["end_to_end"]:
        over = {"ROLL": "roll", "RLBoost+": "rlboost"}[row["over"]]
        yield f"6.2-over-{over}-{SHORT[row['model']]}", tuple(row.get("speedup") or row["gain"])
    yield from ablations(shared["ablation"])
    batch, limit = shared["sensitivity"]
    yield "6.4-batch-8b", tuple(batch["gain"])
    yield "6.4-peak-rlboost-8b", batch["peak_batch_rlboost"]
    yield "6.4-peak-pearl-8b", batch["peak_batch_pearl"]
    yield "6.4-limit-8b", tuple(limit["gain"])
    (selection,) = shared["ratio_selection"]
    yield "6.5.1-dedicated-8b", selection["dedicated_only"].split(" match")[0]
    yield "6.5.1-overlap-8b", selection["with_overlap"]
    yield "6.5.1-regret-8b", selection["worst_regret"]
    costs = shared["reconfiguration_cost_s"]
    yield "6.5.2-expansion-background", tuple(costs["expansion_background"])
    yield "6.5.2-expansion-finalize", tuple(costs["expansion_finalize"])
    yield "6.5.2-borrow-activate", costs["borrow_activate"]
    yield "6.5.2-borrow-return", tuple(costs["borrow_return"])
    below = costs["interrupted_request_reprefill_share_of_trajectory"]
    yield "6.5.2-reprefill", (0, float(below.removeprefix("< ")))
    (prorsa,) = shared["prorsa"]
    yield "prorsa-rollout", tuple(prorsa["rollout_speedup_over_colocated"])


def ablations(rows: list[dict]) -> Iterator[tuple[str, object]]:
    for row in rows:
        model, gpus = SHORT[row["model"]], row["rollout_gpus"]
        where = "-".join(map(str, gpus)) if isinstance(gpus, list) else gpus
        gains = {key: value for key, value in row.items() if key not in ("model", "rollout_gpus")}
        for name, value in gains.items():
            figure = tuple(value) if isinstance(value, list) else value
            yield f"6.3-{name.replace('_', '-')}-{where}-{model}", figure
        if not isinstance(gpus, list):
            policies = {
                "forced_disaggregation": "forced-disaggregated",
                "ungated_borrowing": "pearl-ungated",
                "gated_borrowing": "pearl",
            }
            yield f"6.3-order-{where}-{model}", " < ".join(policies[name] for name in sorted(gains, key=gains.get))


@pytest.mark.skipif(not SHARED.exists(), reason="the shared figures are not here")
def test_every_published_figure_is_a_row_and_nothing_else_is() -> None:
    shared = yaml.safe_load(SHARED.read_text(encoding="utf-8"))
    assert {target.id: target.published for target in load_targets()} == dict(published(shared))


def test_calibrated_rows_are_those_of_sections_2_3_and_the_costs() -> None:
    for target in load_targets():
        assert (target.role is Role.CALIBRATED) == (target.section in CALIBRATED_SECTIONS), target.id


def test_ids_are_unique_and_begin_with_their_section() -> None:
    targets = load_targets()
    assert len({target.id for target in targets}) == len(targets)
    assert all(target.id.startswith(f"{target.section}-") for target in targets)
