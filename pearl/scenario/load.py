"""Scenario files become facts: YAML, then schema, then what only several parts together can say."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pearl.core.cluster import ClusterState
from pearl.core.engine import EngineProfile
from pearl.core.event import Event
from pearl.core.facts import ForecastSamples
from pearl.documents import Document, PathKey, nearest, parse_document, read_document
from pearl.errors import Fault, ScenarioError
from pearl.scenario.checked import in_file_order, validate_filled
from pearl.scenario.cluster import build_cluster
from pearl.scenario.engines import is_path
from pearl.scenario.event import resolve_event
from pearl.scenario.model import Scenario
from pearl.scenario.parts import build_engine, build_workload
from pearl.scenario.schema import ScenarioDocument, ScenarioSpec

SHIPPED = Path(__file__).parent.parent / "scenarios"
"""Folder of the scenarios that come with PEARL."""


def shipped_scenarios() -> dict[str, Path]:
    """Files of the scenarios that come with PEARL, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def load_scenario(path: Path | str) -> Scenario:
    """The scenario in a file, or a shipped one by name; raises ScenarioError with every fault found."""
    return build_scenario(read_document(_locate(path), error=ScenarioError))


def parse_scenario(text: str, *, file: str) -> Scenario:
    """The scenario in a text that came from `file`; raises ScenarioError with every fault found."""
    return build_scenario(parse_document(text, file=file, error=ScenarioError))


def build_scenario(document: Document) -> Scenario:
    """The scenario that a document says; raises ScenarioError with every fault found."""
    parsed = validate_filled(ScenarioDocument, document)
    return _Assembly(parsed, document).scenario()


def _locate(path: Path | str) -> Path:
    if isinstance(path, Path) or is_path(path) or Path(path).is_file():
        return Path(path)
    known = shipped_scenarios()
    if path not in known:
        hint = nearest(path, known) or "give the path of a scenario file"
        raise ScenarioError(Fault(message=f"no scenario {path!r}: neither a file nor a shipped one", hint=hint))
    return known[path]


class _Assembly:
    """Builds the facts of one document, collecting faults."""

    def __init__(self, parsed: ScenarioDocument, document: Document) -> None:
        self._parsed = parsed
        self._spec: ScenarioSpec = parsed.spec
        self._document = document
        self._faults: list[Fault] = []

    def scenario(self) -> Scenario:
        """The scenario; raises ScenarioError with every fault of its parts and of how they fit together."""
        engine = self._engine()
        state, faults = build_cluster(self._spec.cluster, self._document, gpu=engine.gpu if engine else "")
        self._faults += faults
        event = None if faults else self._event(state)
        workload, faults = build_workload(self._spec.workload, self._document, ("spec", "workload"))
        self._faults += faults
        if engine:
            self._check_fit(engine)
        if self._faults or engine is None:
            raise ScenarioError(in_file_order(self._faults))
        spec = self._spec
        return Scenario(
            name=self._parsed.metadata.name,
            file=self._document.file,
            sha256=hashlib.sha256(self._document.text.encode()).hexdigest(),
            state=state,
            workload=workload,
            engine=engine,
            costs=spec.costs.build(),
            prices=dict(spec.prices),
            power_w=dict(spec.power),
            job_priority=spec.job_priority,
            overlap_window_s=spec.overlap_window,
            policy=spec.policy,
            max_gpus=spec.cluster.max_gpus,
            event=event,
            forecasts={
                source: ForecastSamples(values=part.values, age_s=part.age) for source, part in spec.forecasts.items()
            },
            seed=spec.seed,
            simulation=spec.simulation.build(),
            description=self._parsed.metadata.description,
        )

    def _fault(self, path: PathKey, message: str, *, expected: str | None = None, hint: str | None = None) -> None:
        span = self._document.span(("spec", *path))
        self._faults.append(Fault(message=message, span=span, expected=expected, hint=hint))

    def _engine(self) -> EngineProfile | None:
        name = f"{self._parsed.metadata.name}-engine"
        engine, faults = build_engine(self._spec.engine, self._document, ("spec", "engine"), name=name)
        self._faults += faults
        return engine

    def _event(self, state: ClusterState) -> Event | None:
        if self._spec.event is None:
            return None
        try:
            return resolve_event(self._spec.event, state)
        except ValueError as e:
            self._fault(("event",), f"event: {e}")
            return None

    def _check_fit(self, engine: EngineProfile) -> None:
        """Step times hold only for the GPU and the tensor-parallel size that they were measured at."""
        cluster = self._spec.cluster
        if cluster.gpu is not None and cluster.gpu.lower() != engine.gpu.lower():
            message = f"the cluster has {cluster.gpu} GPUs, and engine {engine.name!r} is for {engine.gpu}"
            self._fault(("cluster", "gpu"), message, expected=engine.gpu)
        if cluster.tensor_parallel != engine.tensor_parallel:
            message = (
                f"tensor_parallel {cluster.tensor_parallel}, and engine {engine.name!r} has {engine.tensor_parallel}"
            )
            hint = "step times of one tensor-parallel size say nothing of another; give the engine's in full"
            self._fault(("cluster", "tensor_parallel"), message, expected=str(engine.tensor_parallel), hint=hint)
