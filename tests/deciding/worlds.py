"""Small worlds for decision tests: made in code, so that a test shows what it decides on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pearl.core.cluster import ClusterState, Counts, Role, Status, Worker, Zone
from pearl.core.decision import PathTimes
from pearl.core.distribution import Distribution
from pearl.core.engine import DecodeCost, EngineProfile, KvTransfer, PrefillCost
from pearl.core.problem import UNREACHABLE_MS, MakespanTables, PairRung
from pearl.core.situation import Situation
from pearl.core.workload import Workload
from pearl.policy.load import load_policy
from pearl.policy.model import Policy

ENGINE = EngineProfile(
    name="toy",
    model="toy",
    gpu="toy",
    tensor_parallel=1,
    prefill=PrefillCost(p0_s=0.005, p1_s=2e-5, p2_s=1e-10),
    decode=DecodeCost(c0_s=0.005, c1_s=5e-5, c2_s=1e-8),
    transfer=KvTransfer(latency_s=0.005, bandwidth_bytes_per_s=25e9, bytes_per_token=147_456),
    kv_decode_tokens=400_000,
    kv_colocated_tokens=390_000,
)
WORKLOAD = Workload(
    trajectories=32,
    turns=Distribution.constant(8),
    first_prompt_tokens=Distribution.constant(2000),
    new_prompt_tokens=Distribution.constant(800),
    output_tokens=Distribution.constant(300),
    environment_s=Distribution.constant(1.0),
    max_context_tokens=32_768,
)


def workers(zone: Zone, number: int, role: Role, **fields: object) -> tuple[Worker, ...]:
    status = Status.INACTIVE if role is Role.INACTIVE else Status.ACTIVE
    settings: dict[str, object] = {"role": role, "status": status, **fields}
    return tuple(
        Worker(id=f"{zone}-{role}/{i}", node=f"{zone}-node", zone=zone, **settings)  # type: ignore[arg-type]
        for i in range(number)
    )


def situation(*pools: Sequence[Worker], **fields: object) -> Situation:
    state = ClusterState(workers=tuple(worker for pool in pools for worker in pool))
    settings: dict[str, object] = {"workload": WORKLOAD, "job_priority": 5, "overlap_window_s": 1000.0, **fields}
    return Situation(state=state, engine=ENGINE, **settings)  # type: ignore[arg-type]


class TablePredictor:
    """Stub: makespans given by the test, in milliseconds, by number of workers."""

    id = "table"

    def __init__(self, *, colocated: Mapping[int, int], pairs: Mapping[tuple[int, int], int] | None = None) -> None:
        self._colocated = colocated
        self._pairs = pairs or {}

    def tables(self, workload: Workload, engine: EngineProfile, *, workers: int) -> MakespanTables:
        column = tuple(self._colocated.get(n, UNREACHABLE_MS) for n in range(workers + 1))
        rungs = tuple(
            PairRung(prefill=p, decode=d, makespan_ms=ms)
            for (p, d), ms in sorted(self._pairs.items())
            if p + d <= workers
        )
        path = (UNREACHABLE_MS, *([1] * workers))
        if not rungs:
            path = (UNREACHABLE_MS,) * (workers + 1)
        return MakespanTables(
            colocated_ms=column, prefill_ms=path, decode_ms=path, pairs=rungs, exact_pairs=bool(rungs)
        )

    def paths(self, workload: Workload, engine: EngineProfile, counts: Counts) -> PathTimes:
        ms = self.tables(workload, engine, workers=64).makespan_ms(counts)
        return PathTimes(
            makespan_s=ms / 1000,
            prefill_s=0.0,
            transfer_s=0.0,
            decode_s=0.0,
            environment_s=0.0,
            prefix_hit_rate=1.0,
            prefill_utilisation=0.0,
            decode_utilisation=0.0,
        )


POLICY = """
apiVersion: pearl.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: test}
spec:
  decision:
    modes: [colocated, disaggregated]
    hysteresis: {semantics: SEMANTICS, mode: 8s, ratio: 2s, cooldown: {mode: 2 steps}}
    borrow: {enabled: true, window: overlap_window, min_saving: activate_cost + return_cost}
EXTRA
  objective:
    tiers:
      - {name: makespan, minimize: T}
      - {name: churn, minimize: 3*role_changes + 2*adds + removes}
"""


def policy(tmp_path: Path, *, semantics: str = "gate", extra: str = "", name: str = "test") -> Policy:
    path = tmp_path / f"{name}.yaml"
    text = POLICY.replace("SEMANTICS", semantics).replace("EXTRA", extra).replace("{name: test}", f"{{name: {name}}}")
    path.write_text(text, encoding="utf-8")
    return load_policy(path)
