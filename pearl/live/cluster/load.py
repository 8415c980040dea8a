"""Cluster files become facts: YAML, then schema, then what only several parts together can say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pearl.core.cluster import Zone
from pearl.core.engine import EngineProfile
from pearl.core.workload import Workload
from pearl.documents import Document, PathKey, nearest, read_document
from pearl.errors import Fault, ScenarioError
from pearl.live.cluster.model import (
    EngineSettings,
    HttpSettings,
    Label,
    LiveCluster,
    LocalNode,
    ModelSettings,
    RaySettings,
    RouterSettings,
    WeightSettings,
    ZoneSettings,
)
from pearl.live.cluster.schema import ClusterDocument, RouterSpec, ZoneSpec
from pearl.live.cluster.sets import with_sets
from pearl.live.devices import DeviceProfile, device_profile
from pearl.live.tiny_model import TinyModel
from pearl.scenario.checked import in_file_order, validate_filled
from pearl.scenario.engines import is_path
from pearl.scenario.parts import build_engine, build_workload

BUILTIN = Path(__file__).parent / "builtin"
"""Folder of the cluster files that come with PEARL."""
_NO_SETS: Mapping[str, str] = {}


def builtin_clusters() -> dict[str, Path]:
    """Files of the clusters that come with PEARL, by name."""
    return {path.stem: path for path in sorted(BUILTIN.glob("*.yaml"))}


def load_cluster(
    name_or_path: Path | str, sets: Mapping[str, str] = _NO_SETS, *, state_dir: Path | None = None
) -> LiveCluster:
    """The cluster in a file, or a built-in one by name; raises ScenarioError with every fault found.

    `sets` replace values by their path, as in `limits.drain: 10s`; `state_dir` replaces the file's.
    """
    path, base = _locate(name_or_path)
    document = with_sets(read_document(path, error=ScenarioError), sets)
    parsed = validate_filled(ClusterDocument, document)
    digest = hashlib.sha256("\n".join([document.text, *(f"{k}={sets[k]}" for k in sorted(sets))]).encode())
    state = (Path(parsed.spec.state_dir) if state_dir is None else state_dir).resolve()
    return _Assembly(parsed, document, base=base, state_dir=state, sha256=digest.hexdigest()).cluster()


def _locate(ref: Path | str) -> tuple[Path, Path]:
    """The file, and the folder that its relative paths start from: for a built-in one, the working directory."""
    if isinstance(ref, Path) or is_path(ref) or Path(ref).is_file():
        return Path(ref), Path(ref).parent
    known = builtin_clusters()
    if ref not in known:
        hint = nearest(ref, known) or "give the path of a cluster file"
        raise ScenarioError(Fault(message=f"no cluster {ref!r}: neither a file nor a built-in one", hint=hint))
    return known[ref], Path()


@dataclass(kw_only=True)
class _Places:
    """Paths of one document, and whether they stay inside of its roots."""

    document: Document
    base: Path
    roots: tuple[Path, ...]
    faults: list[Fault] = field(default_factory=list)

    def resolve(self, text: str, path: PathKey) -> Path:
        """The path with links followed; a fault where it leads out of every root."""
        found = (self.base / text).resolve()
        if not any(found.is_relative_to(root) for root in self.roots):
            listed = ", ".join(map(str, self.roots))
            message = f"{'.'.join(map(str, path[1:]))}: {found} is in none of the roots"
            fault = Fault(
                message=message,
                span=self.document.span(path),
                expected=f"a path below {listed}",
                hint="name its directory under roots",
            )
            self.faults.append(fault)
        return found


class _Assembly:
    """Builds the facts of one document, collecting faults."""

    def __init__(
        self, parsed: ClusterDocument, document: Document, *, base: Path, state_dir: Path, sha256: str
    ) -> None:
        self._parsed = parsed
        self._spec = parsed.spec
        self._document = document
        self._state_dir = state_dir
        self._sha256 = sha256
        named = tuple((base / root).resolve() for root in parsed.spec.roots)
        self._places = _Places(document=document, base=base, roots=(*named, base.resolve(), state_dir))
        self._faults = self._places.faults

    def cluster(self) -> LiveCluster:
        """The cluster; raises ScenarioError with every fault of its parts and of how they fit together."""
        spec = self._spec
        model, weights = self._model(), self._weights()
        profile, workload = self._profile(), self._workload()
        self._faults += self._contradictions(profile)
        if self._faults or profile is None:
            raise ScenarioError(in_file_order(self._faults))
        return LiveCluster(
            name=self._parsed.metadata.name,
            file=self._document.file,
            sha256=self._sha256,
            ray=RaySettings(
                address=spec.ray.address,
                nodes=tuple(LocalNode(name=n.name, zone=n.zone, workers=n.workers) for n in spec.ray.nodes),
            ),
            device=self._device(),
            model=model,
            engine=self._engine(),
            profile=profile,
            zones={zone: self._zone_of(zone) for zone in Zone},
            workload=workload,
            costs=spec.costs.build(),
            prices=dict(spec.prices),
            power_w=dict(spec.power),
            job_priority=spec.job_priority,
            overlap_window_s=spec.overlap_window,
            training=spec.training.mode,
            max_staleness=spec.training.max_staleness,
            weights=weights,
            roots=self._places.roots,
            http=HttpSettings(host=spec.ports.http.host, port=spec.ports.http.port),
            kv_ports=range(spec.ports.kv.first, spec.ports.kv.first + spec.ports.kv.count),
            limits=spec.limits.build(),
            router=_router(spec.router),
            state_dir=self._state_dir,
            description=self._parsed.metadata.description,
        )

    def _device(self) -> DeviceProfile:
        device = device_profile(self._spec.device)
        return replace(device, engine_args={**device.engine_args, **self._spec.engine.arguments})

    def _model(self) -> ModelSettings:
        spec = self._spec.model
        tiny = None if spec.tiny is None else TinyModel(seed=spec.tiny.seed)
        path = (
            self._state_dir / f"tiny-{tiny.seed}"
            if tiny
            else self._places.resolve(spec.path or "", ("spec", "model", "path"))
        )
        ends = None if spec.eos_token_ids is None else frozenset(spec.eos_token_ids)
        return ModelSettings(path=path, served_name=spec.served_name, tiny=tiny, eos_token_ids=ends)

    def _weights(self) -> WeightSettings:
        spec = self._spec.weights
        root = (
            self._state_dir / "weights"
            if spec.root is None
            else self._places.resolve(spec.root, ("spec", "weights", "root"))
        )
        return WeightSettings(root=root, keep=spec.keep)

    def _engine(self) -> EngineSettings:
        spec = self._spec.engine
        return EngineSettings(
            tensor_parallel=spec.tensor_parallel,
            kv_cache_bytes=None if spec.kv_cache is None else int(spec.kv_cache),
            max_model_tokens=spec.max_model_tokens,
            max_sequences=spec.max_sequences,
            max_batched_tokens=spec.max_batched_tokens,
            kv_lease_s=int(spec.kv_lease),
            kv_margin_s=spec.kv_margin,
            arguments=dict(spec.arguments),
        )

    def _zone_of(self, zone: Zone) -> ZoneSettings:
        spec = self._spec.zones.get(zone) or ZoneSpec()
        key, _, value = (spec.label or "").partition("=")
        default_gpus = self._spec.engine.tensor_parallel if self._spec.device == "cuda" else 0
        return ZoneSettings(
            resource=None if spec.label else spec.resource or f"pearl_{zone}",
            label=Label(key=key, value=value) if spec.label else None,
            workers_per_node=spec.workers_per_node or 0,
            min_workers=spec.min_workers,
            max_workers=spec.max_workers,
            cpus=spec.cpus,
            gpus=default_gpus if spec.gpus is None else spec.gpus,
        )

    def _profile(self) -> EngineProfile | None:
        name = f"{self._parsed.metadata.name}-engine"
        profile, faults = build_engine(self._spec.profile, self._document, ("spec", "profile"), name=name)
        self._faults += faults
        engine = self._spec.engine
        return profile and replace(profile, chunk_tokens=engine.max_batched_tokens, max_sequences=engine.max_sequences)

    def _workload(self) -> Workload | None:
        if self._spec.workload is None:
            return None
        workload, faults = build_workload(self._spec.workload, self._document, ("spec", "workload"))
        self._faults += faults
        return replace(workload, training=self._spec.training.mode, max_staleness=self._spec.training.max_staleness)

    def _contradictions(self, profile: EngineProfile | None) -> Iterator[Fault]:
        """What no part can see alone."""
        yield from self._engine_contradictions(profile)
        yield from self._local_contradictions()
        yield from self._workload_contradictions()
        spec = self._spec
        if spec.weights.keep <= spec.training.max_staleness + 1:
            expected = f"more than training.max_staleness + 1, {spec.training.max_staleness + 1}"
            yield self._fault(("weights", "keep"), f"weights.keep is {spec.weights.keep}", expected)
        if spec.limits.kept < spec.router.kv_margin:
            expected = f"at least router.kv_margin, {spec.router.kv_margin:g}s"
            yield self._fault(("limits", "kept"), f"limits.kept is {spec.limits.kept:g}s", expected)
        yield from self._zone_contradictions()

    def _engine_contradictions(self, profile: EngineProfile | None) -> Iterator[Fault]:
        engine, router = self._spec.engine, self._spec.router
        if self._spec.device == "cpu" and engine.kv_cache is None:
            expected = "a size such as 1 GiB: on cpu vLLM would measure the whole machine"
            yield self._fault(("engine",), "engine.kv_cache is missing", expected)
        if not engine.kv_margin < router.kv_margin < engine.kv_lease:
            expected = f"between engine.kv_margin {engine.kv_margin:g}s and engine.kv_lease {engine.kv_lease:g}s"
            yield self._fault(("router", "kv_margin"), f"router.kv_margin is {router.kv_margin:g}s", expected)
        if profile is not None and profile.tensor_parallel != engine.tensor_parallel:
            message = f"tensor_parallel {engine.tensor_parallel}, and profile {profile.name!r}"
            yield self._fault(("engine", "tensor_parallel"), message, f"{profile.tensor_parallel}, the profile's")

    def _local_contradictions(self) -> Iterator[Fault]:
        """Ray counts the GPUs of each local node from the machine's first."""
        nodes = self._spec.ray.nodes
        whole = {node.zone for node in nodes if self._zone_of(node.zone).gpus >= 1}
        if len(nodes) > 1 and whole:
            message = f"{len(nodes)} local nodes would take the same GPUs"
            expected = f"one node, or a share below 1 as zones.{min(whole)}.gpus"
            yield self._fault(("ray", "nodes"), message, expected)

    def _workload_contradictions(self) -> Iterator[Fault]:
        workload, training = self._spec.workload, self._spec.training
        if workload is None:
            return
        if workload.max_context_tokens > self._spec.engine.max_model_tokens:
            expected = f"at most engine.max_model_tokens, {self._spec.engine.max_model_tokens}"
            message = f"contexts of {workload.max_context_tokens} tokens"
            yield self._fault(("workload", "max_context_tokens"), message, expected)
        for key, given, meant in (
            ("training", workload.training, training.mode),
            ("max_staleness", workload.max_staleness, training.max_staleness),
        ):
            if key in workload.model_fields_set and given != meant:
                name = "mode" if key == "training" else key
                yield self._fault(("workload", key), f"workload.{key} is {given}", f"{meant}, as training.{name}")

    def _zone_contradictions(self) -> Iterator[Fault]:
        taken: dict[str, Zone] = {}
        for zone in Zone:
            spec = self._spec.zones.get(zone) or ZoneSpec()
            mark = spec.label or spec.resource or f"pearl_{zone}"
            if (other := taken.setdefault(mark, zone)) is not zone:
                yield self._fault(("zones", zone), f"zones {other} and {zone} share {mark!r}", "one for each zone")
            if spec.gpus is not None and spec.gpus > 1 and spec.gpus != int(spec.gpus):
                yield self._fault(("zones", zone, "gpus"), f"{spec.gpus:g} GPUs", "a whole number above 1")
            if spec.label and self._spec.ray.nodes:
                message = f"zone {zone} goes by label"
                yield self._fault(("zones", zone, "label"), message, "a resource: local nodes are made with one")

    def _fault(self, path: PathKey, message: str, expected: str) -> Fault:
        return Fault(message=message, span=self._document.span(("spec", *path)), expected=expected)


def _router(spec: RouterSpec) -> RouterSettings:
    return RouterSettings(
        slots_per_worker=spec.slots_per_worker,
        max_queued=spec.max_queued,
        call_deadline_s=spec.call_deadline,
        max_call_deadline_s=spec.max_call_deadline,
        request_lifetime_s=spec.request_lifetime,
        stall_s=spec.stall,
        kv_margin_s=spec.kv_margin,
    )
