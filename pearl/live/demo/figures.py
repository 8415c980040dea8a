"""What the running system says of itself, as numbers: its metrics page, its plans and states, its workers' counters."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pearl.live.demo.system import LiveSystem, SystemFailedError
from pearl.live.engine.engine import EngineReport
from pearl.live.rollout import Outcome

PAGE_S = 10.0
WATCH_EVERY_S = 0.1
"""A mode that lasts for less is missed, and was in front of nobody."""
PLANS = 1000
_SERIES = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A metrics page, as read at one moment."""

    series: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def total(self, name: str, **labels: str) -> float:
        """Sum over all series of that name that carry these labels."""
        wanted = frozenset(labels.items())
        return sum(value for (found, carried), value in self.series.items() if found == name and wanted <= carried)


def parse_page(text: str) -> Page:
    """The counters and gauges of a page in Prometheus' text format."""
    series: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for line in text.splitlines():
        if match := _SERIES.match(line):
            series[match[1], frozenset(_LABEL.findall(match[2] or ""))] = float(match[3])
    return Page(series=series)


async def read_page(url: str) -> Page:
    """The metrics page of the service at `url`."""

    def read() -> str:
        with urllib.request.urlopen(f"{url}/metrics", timeout=PAGE_S) as answer:
            return bytes(answer.read()).decode()

    return parse_page(await asyncio.to_thread(read))


def steps_ended(plans: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Steps that ended well, by kind."""
    return Counter(step["kind"] for plan in plans for step in plan["steps"] if step["phase"] == "ended")


@dataclass(slots=True)
class KvTally:
    """Prompt tokens that workers pulled from others, by the engines' own count, over restarts of workers."""

    _seen: dict[tuple[str, int], int] = field(default_factory=dict)

    def note(self, reports: Mapping[str, EngineReport]) -> None:
        """Take down what these workers say; counters of one process only grow."""
        for report in reports.values():
            self._seen[report.worker, report.pid] = report.counters.transferred

    @property
    def tokens(self) -> int:
        """All of them, canaries included."""
        return sum(self._seen.values())


@dataclass(slots=True)
class Watch:
    """Follows the state, and tells what changed."""

    system: LiveSystem
    changed: Callable[[dict[str, Any] | None, dict[str, Any]], None]
    """Called with the state before and after; the first time with None."""
    mode_changes: int = 0
    _mode: str | None = None

    async def run(self) -> None:
        """Until cancelled. A controller that is away is asked again."""
        before: dict[str, Any] | None = None
        while True:
            state = await self.system.state()
            self._follow(state["mode"])
            if before is None or _shown(before) != _shown(state):
                self.changed(before, state)
                before = state
            await asyncio.sleep(WATCH_EVERY_S)

    def _follow(self, mode: str | None) -> None:
        if mode is None or mode == self._mode:
            return
        self.mode_changes += self._mode is not None
        self._mode = mode


def _shown(state: Mapping[str, Any]) -> tuple[Any, ...]:
    workers = tuple((w["id"], w["role"], w["status"], w["must_leave"]) for w in state["workers"])
    return state["mode"], workers, state["weights"]["latest"], state["training"]["running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a demonstration."""

    requests_accepted: int
    """By the router's counter."""
    completed: int
    lost: int
    duplicated: int
    """Requests that the router took twice, or that were answered with anything but one answer."""
    mode_changes: int
    role_changes: int
    borrows: int
    returns: int
    preemptions: int
    tokens_identical: bool
    kv_tokens_transferred: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether nothing was lost, and every token is right."""
        return self.lost == 0 == self.duplicated and self.tokens_identical and self.completed > 0

    def document(self) -> dict[str, Any]:
        """As JSON data."""
        return {**asdict(self), "seconds": round(self.seconds, 1)}


def summarise(
    *,
    page: Page,
    plans: Iterable[Mapping[str, Any]],
    outcome: Outcome,
    reference: Outcome,
    watch: Watch,
    kv: int,
    seconds: float,
) -> Summary:
    """The summary of one life of the controller: its counters begin at 0."""
    accepted = round(page.total("pearl_router_requests_accepted_total"))
    taken_twice = max(0, accepted - outcome.accepted)
    if accepted < outcome.accepted:
        raise SystemFailedError(
            f"the router counted {accepted} accepted requests, and {outcome.accepted} were answered"
        )
    ended = steps_ended(plans)
    return Summary(
        requests_accepted=accepted,
        completed=outcome.completed,
        lost=len(outcome.losses),
        duplicated=len(outcome.wrong) + taken_twice,
        mode_changes=watch.mode_changes,
        role_changes=ended["change_role"],
        borrows=round(page.total("pearl_transition_seconds_count", kind="borrow")),
        returns=round(page.total("pearl_transition_seconds_count", kind="return")),
        preemptions=round(page.total("pearl_events_total", kind="reclaim_notice")),
        tokens_identical=not outcome.differing(reference),
        kv_tokens_transferred=kv,
        seconds=seconds,
    )
