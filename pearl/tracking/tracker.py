"""The Runtime Tracker: all of telemetry into everything that a decision is taken on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pearl.core.facts import ForecastSamples
from pearl.core.situation import Situation
from pearl.core.telemetry import Telemetry
from pearl.tracking.costs import CalibrationTracker, CostTracker
from pearl.tracking.engine import EngineTracker
from pearl.tracking.workload import WorkloadTracker


@dataclass(frozen=True, kw_only=True)
class RuntimeTracker:
    """Workload, engine, costs and calibration of one job."""

    workload: WorkloadTracker = field(default_factory=WorkloadTracker)
    engine: EngineTracker = field(default_factory=EngineTracker)
    costs: CostTracker = field(default_factory=CostTracker)
    calibration: CalibrationTracker = field(default_factory=CalibrationTracker)

    def update(self, records: Iterable[Telemetry], now_s: float) -> RuntimeTracker:
        """The tracker that has also seen `records`, at `now_s`. Call it without records, too: silence tells as well."""
        seen = tuple(records)
        return RuntimeTracker(
            workload=self.workload.update(seen, now_s),
            engine=self.engine.update(seen),
            costs=self.costs.update(seen),
            calibration=self.calibration.update(seen),
        )

    def inform(
        self, situation: Situation, *, borrowing: bool, samples: Mapping[str, ForecastSamples] | None = None
    ) -> Situation:
        """The situation as telemetry has it: an unknown workload stays None, so that the decision is to keep.

        `borrowing`: whether the coming rollout step borrows, which selects the costs. Forecast samples replace those
        of the same source.
        """
        return replace(
            situation,
            workload=self.workload.profile(),
            engine=self.engine.profile() or situation.engine,
            costs=self.costs.costs(borrowing=borrowing),
            calibration_error=self.calibration.error(),
            samples={**situation.samples, **(samples or {})},
        )
