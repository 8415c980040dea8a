"""The engine profile from telemetry: step times refitted to what live workers show; an offline profile is a prior."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pearl.core.engine import DecodeCost, EngineProfile, KvTransfer, PrefillCost
from pearl.core.telemetry import (
    EngineRecord,
    StepKind,
    StepRecord,
    Telemetry,
    TransitionKind,
    TransitionRecord,
    TurnRecord,
)
from pearl.scenario.fit import TRANSFER_BYTES_PER_S, TRANSFER_LATENCY_S
from pearl.tracking.step_times import Weighed, fit_decode, fit_error, fit_mixed, fit_prefill, fit_transfer
from pearl.tracking.workload import HALF_LIFE_STEPS, LEAST_WEIGHT

WARMUP_SAMPLES = 16
"""Steps of each kind that a worker takes before its times count: allocator, kernels and graphs are then warm. Reports
of cold engines speak of about ten slow steps."""
STEP_RECORDS = 512
"""Records of each kind that are kept of a rollout step: a median over them is known to 5 % of the spread."""
_RESTARTS = frozenset({TransitionKind.START, TransitionKind.ADMIT, TransitionKind.BORROW})
"""Transitions after which a worker is cold again."""

_Pair = tuple[float, float]
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class EngineTracker:
    """Tracks what one worker can do; `prior` is the offline profile, which live telemetry outweighs or replaces."""

    prior: EngineProfile | None = None
    half_life_steps: float = HALF_LIFE_STEPS
    step_records: int = STEP_RECORDS
    """Records of each kind that are kept of a rollout step; the time of a fit grows with them."""
    steps: Mapping[int, tuple[StepRecord, ...]] = field(default_factory=dict)
    """Engine steps of warm workers, by rollout step."""
    transfers: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """(tokens, seconds) of KV transfers, by rollout step."""
    warmed: Mapping[tuple[str, StepKind], int] = field(default_factory=dict)
    """Warm-up samples that each worker has given of each kind."""
    engine: EngineRecord | None = None
    """What the newest engine said of itself."""

    def update(self, records: Iterable[Telemetry]) -> EngineTracker:
        """The tracker that has also seen `records`; those of a worker that is not warm yet are dropped."""
        ordered = sorted(records, key=_order)
        warm, warmed = _warm(ordered, self.warmed)
        moved = [r for r in ordered if isinstance(r, TurnRecord) and r.transfer_s > 0]
        steps = _merged(self.steps, _by_step((r.step, r) for r in warm))
        transfers = _merged(self.transfers, _by_step((r.step, (float(r.prompt_tokens), r.transfer_s)) for r in moved))
        last = max((*steps, *transfers), default=0)
        kept = {step for step in (*steps, *transfers) if self._weight(last - step) >= LEAST_WEIGHT}
        return replace(
            self,
            steps={step: _thinned(part, self.step_records) for step, part in steps.items() if step in kept},
            transfers={
                step: _evenly(sorted(part), self.step_records) for step, part in transfers.items() if step in kept
            },
            warmed=warmed,
            engine=next((r for r in reversed(ordered) if isinstance(r, EngineRecord)), self.engine),
        )

    def profile(self) -> EngineProfile | None:
        """The refitted profile; the prior's figures where too little was measured; None without either."""
        last = max((*self.steps, *self.transfers), default=0)
        weighed = [(r, self._weight(last - step)) for step, part in sorted(self.steps.items()) for r in part]
        moved = [(p, self._weight(last - step)) for step, part in sorted(self.transfers.items()) for p in part]
        prefill = fit_prefill(_of_kind(weighed, StepKind.PREFILL), self.prior.prefill if self.prior else None)
        decode = fit_decode(_of_kind(weighed, StepKind.DECODE), self.prior.decode if self.prior else None)
        base = self._base()
        if prefill is None or decode is None or base is None:
            return None
        profile = replace(base, prefill=prefill, decode=decode, transfer=fit_transfer(moved, base.transfer))
        return replace(
            profile,
            mixed_step_factor=fit_mixed(_of_kind(weighed, StepKind.MIXED), profile),
            fit=fit_error(weighed, prefill, decode) or base.fit,
        )

    def _weight(self, steps_ago: int) -> float:
        return float(2.0 ** (-steps_ago / self.half_life_steps))

    def _base(self) -> EngineProfile | None:
        """Everything but step times: the engine's own word where it spoke, then the prior's."""
        if self.engine is None:
            return self.prior
        return _as_said(self.engine, self.prior or _blank(self.engine))


def _blank(said: EngineRecord) -> EngineProfile:
    """A profile that lacks its step times, for an engine that no offline profile describes."""
    return EngineProfile(
        name="telemetry",
        model=said.model,
        gpu=said.gpu,
        tensor_parallel=said.tensor_parallel,
        prefill=PrefillCost(p0_s=0.0, p1_s=0.0, p2_s=0.0),
        decode=DecodeCost(c0_s=0.0, c1_s=0.0, c2_s=0.0),
        transfer=KvTransfer(
            latency_s=TRANSFER_LATENCY_S,
            bandwidth_bytes_per_s=TRANSFER_BYTES_PER_S,
            bytes_per_token=said.kv_bytes_per_token,
        ),
        kv_decode_tokens=said.kv_tokens,
        kv_colocated_tokens=said.kv_tokens,
    )


def _as_said(said: EngineRecord, base: EngineProfile) -> EngineProfile:
    return replace(
        base,
        transfer=replace(base.transfer, bytes_per_token=said.kv_bytes_per_token),
        kv_decode_tokens=said.kv_tokens,
        kv_colocated_tokens=said.kv_tokens,
        chunk_tokens=said.chunk_tokens,
        max_sequences=said.max_sequences,
    )


def _warm(
    ordered: Iterable[Telemetry], before: Mapping[tuple[str, StepKind], int]
) -> tuple[list[StepRecord], dict[tuple[str, StepKind], int]]:
    """Steps of warm workers, and the warm-up samples counted."""
    warmed, kept = dict(before), []
    for record in ordered:
        if isinstance(record, TransitionRecord) and record.kind in _RESTARTS:
            for key in [key for key in warmed if key[0] in record.workers]:
                del warmed[key]
        elif isinstance(record, EngineRecord):
            for key in [key for key in warmed if key[0] == record.worker]:
                del warmed[key]
        elif isinstance(record, StepRecord):
            key = (record.worker, record.kind)
            count = warmed.get(key, 0)
            if count < WARMUP_SAMPLES:
                warmed[key] = count + 1
            else:
                kept.append(record)
    return kept, warmed


def _by_step(pairs: Iterable[tuple[int, _T]]) -> dict[int, tuple[_T, ...]]:
    found: dict[int, list[_T]] = {}
    for step, item in pairs:
        found.setdefault(step, []).append(item)
    return {step: tuple(items) for step, items in found.items()}


def _merged(old: Mapping[int, tuple[_T, ...]], new: Mapping[int, tuple[_T, ...]]) -> dict[int, tuple[_T, ...]]:
    return {step: (*old.get(step, ()), *new.get(step, ())) for step in sorted(old.keys() | new.keys())}


def _thinned(records: tuple[StepRecord, ...], most: int) -> tuple[StepRecord, ...]:
    """At most `most` of each kind, spread evenly over what the steps' times depend on."""
    ordered = sorted(records, key=_sizes)
    return tuple(r for kind in StepKind for r in _evenly([r for r in ordered if r.kind is kind], most))


def _evenly(ordered: Sequence[_T], most: int) -> tuple[_T, ...]:
    surplus = len(ordered) > most
    return tuple(ordered[i * len(ordered) // most] for i in range(most)) if surplus else tuple(ordered)


def _sizes(record: StepRecord) -> tuple[int, int, int, int, float]:
    return record.new_tokens, record.cached_tokens, record.batch, record.context_tokens, record.seconds


def _of_kind(steps: Weighed, kind: StepKind) -> Weighed:
    return [(record, weight) for record, weight in steps if record.kind is kind]


def _order(record: Telemetry) -> tuple[float, str, str, tuple[float, ...]]:
    """By time; what happens at one time in an order of its own, so that the order of delivery does not matter."""
    if isinstance(record, StepRecord):
        return record.at_s, "step", record.worker, _sizes(record)
    return record.at_s, type(record).__name__, "", ()
