"""What is recorded of a decision: the policy's mark, thresholds, metrics and forecasts, and forecasts in words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import pearl
from pearl.api import Result
from pearl.core.facts import ForecastValue
from pearl.deciding.facts import NO_WINDOW_S
from pearl.deciding.record import ForecastReport, context
from pearl.live.control.documents import decision_document
from pearl.report.document import result_document
from pearl.report.text import result_text

FORECAST = ForecastValue(name="w", source="overlap_window", value=153.2, age_s=40.0, stale=False, samples=8)


def reported(**fields: Any) -> str:
    return ForecastReport(value=replace(FORECAST, **fields), unit="s").text()


def test_a_forecast_has_its_unit_its_source_and_the_age_of_its_newest_sample():
    assert reported() == "153.2 s (source overlap_window, 8 samples, the newest 40 s old)"
    assert reported(samples=1).endswith("(source overlap_window, 1 sample, the newest 40 s old)")
    assert reported(stale=True).endswith("the newest 40 s old, stale)")


def test_a_forecast_without_samples_has_no_age_and_without_a_limit_no_figure():
    assert reported(samples=0, age_s=0.0) == "153.2 s (the policy's default; source overlap_window, no samples)"
    assert reported(samples=0, value=NO_WINDOW_S) == "no known limit (source overlap_window, no samples)"
    assert reported(samples=0, value=2e6) == "2000000 s (the policy's default; source overlap_window, no samples)"


@pytest.fixture(scope="module")
def solved() -> Result:
    return pearl.solve("qwen3-8b-swe", policy="cost-budget", predictor="bubble", time_limit_s=60.0)


def test_every_executor_records_what_the_policy_reference_promises(solved):
    recorded, shown = context(solved.verdict), result_document(solved)
    assert recorded["policy"] == {"name": "cost-budget", "sha256": shown.inputs.policy_sha256}
    assert recorded["metrics"] == shown.metrics
    assert recorded["metrics"].keys() == {"usd_rate"}
    assert recorded["forecasts"] == [forecast.model_dump() for forecast in shown.forecasts]
    assert recorded["stay_s"] == solved.verdict.posed.stay_ms / 1000
    assert recorded["thresholds"]["semantics"] == "charge"
    live = decision_document(solved.tick)
    assert recorded.items() <= live.items()
    assert json.loads(json.dumps(recorded)) == recorded


def test_no_stand_in_for_a_window_without_an_end_is_shown():
    text = result_text(result_document(pearl.solve("small-4gpu", predictor="bubble", time_limit_s=60.0)))
    assert "  forecast window: no known limit (source overlap_window, no samples)\n" in text
    assert "1e+06" not in text
