"""Event logs to draw: one written by hand, and random ones that a simulator could have written."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pearl.core.cluster import Role, Status, Zone
from pearl.core.decision import Outcome
from pearl.sim.log import Happening, Record

Log = tuple[Record, ...]


def worker(at_s: float, name: str, zone: Zone, role: Role, status: Status = Status.ACTIVE, *, gpus: int = 1) -> Record:
    data = {"worker": name, "zone": zone.value, "role": role.value, "status": status.value, "gpus": gpus}
    return Record(at_s=at_s, what=Happening.WORKER, data=data)


def gone(at_s: float, name: str) -> Record:
    return Record(at_s=at_s, what=Happening.WORKER, data={"worker": name, "gone": True})


def decision(at_s: float, outcome: Outcome = Outcome.KEEP, configuration: str = "2C", **data: object) -> Record:
    facts: dict[str, object] = {
        "event": "batch_started",
        "outcome": outcome.value,
        "configuration": configuration,
        "borrowed": 0,
        "predicted_s": 50.0,
        "reasons": [{"code": "no_better", "text": "nothing better passes the policy's gates"}],
        "steps": 0,
    }
    return Record(at_s=at_s, what=Happening.DECISION, data={**facts, **data})


def bar(at_s: float, what: Happening, batch: int) -> Record:
    return Record(at_s=at_s, what=what, data={"batch": batch})


def small_log() -> Log:
    """100 s: a reserved worker that turns from decode to prefill, a spot worker that comes and goes, a borrowed one."""
    inactive, moving = Status.INACTIVE, Status.TRANSITIONING
    best = [{"code": "best", "text": "1P1D is best: <10 s off the 60.0 s of staying"}]
    return (
        worker(0, "reserved-0/0", Zone.RESERVED, Role.DECODE),
        worker(0, "train-0/0", Zone.OVERLAP, Role.INACTIVE, inactive, gpus=2),
        bar(0, Happening.BATCH_BEGAN, 0),
        decision(0, Outcome.SWITCH, "1P1D", reasons=best, borrowed=1, steps=3),
        worker(0, "train-0/0", Zone.OVERLAP, Role.PREFILL, moving, gpus=2),
        worker(6, "train-0/0", Zone.OVERLAP, Role.PREFILL, gpus=2),
        worker(20, "spot-1/0", Zone.PREEMPTIBLE, Role.INACTIVE, inactive),
        worker(20, "spot-1/0", Zone.PREEMPTIBLE, Role.DECODE, moving),
        worker(40, "spot-1/0", Zone.PREEMPTIBLE, Role.DECODE),
        bar(50, Happening.BATCH_ENDED, 0),
        bar(50, Happening.TRAINING_BEGAN, 0),
        decision(50),
        worker(50, "reserved-0/0", Zone.RESERVED, Role.PREFILL),
        worker(50, "train-0/0", Zone.OVERLAP, Role.INACTIVE, inactive, gpus=2),
        Record(at_s=60, what=Happening.EVENT, data={"kind": "reclaim_notice", "workers": ["spot-1/0"]}),
        Record(at_s=60, what=Happening.STEP_BEGAN, data={"step": "Drain", "worker": "spot-1/0"}),
        Record(at_s=70, what=Happening.GROUP_ROLLED_BACK, data={"workers": ["spot-2/0"], "because": "gone"}),
        gone(75, "spot-1/0"),
        Record(at_s=75, what=Happening.EVENT, data={"kind": "gpus_lost", "workers": ["spot-1/0"]}),
    )


# Made once: to make a strategy takes as long as to draw from it.
_STEP_S = st.sampled_from((0.0, 0.0, 0.1, 1.0, 7.3))
_NAMES = tuple(f"node-{i}/0" for i in range(4))
_NAME, _ZONE, _ROLE, _STATUS = (st.sampled_from(values) for values in (_NAMES, Zone, Role, Status))
_GPUS, _FATE = st.integers(1, 4), st.integers(0, 3)


@st.composite
def logs(draw: st.DrawFn) -> tuple[Log, float]:
    """A log and its horizon: workers that come, change at any moment, several times at one instant, go and return."""
    fixed = {name: (draw(_ZONE), draw(_GPUS)) for name in _NAMES}
    there: set[str] = set()
    records: list[Record] = []
    at_s = 0.0
    for _ in range(draw(st.integers(0, 25))):
        at_s += draw(_STEP_S)
        name = draw(_NAME)
        zone, gpus = fixed[name]
        if name in there and draw(_FATE) == 0:
            there.discard(name)
            records.append(gone(at_s, name))
            continue
        there.add(name)
        records.append(worker(at_s, name, zone, draw(_ROLE), draw(_STATUS), gpus=gpus))
    return tuple(records), at_s + draw(st.sampled_from((0.5, 10.0)))


def as_line(record: Record, **changes: Any) -> Record:
    """The record with some of its data changed; a change to `...` takes the key away."""
    data = {**record.data, **changes}
    return Record(at_s=record.at_s, what=record.what, data={k: v for k, v in data.items() if v is not ...})
