"""Carries a reproduction out: every run once, in parallel, then the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import yaml

from pearl.errors import Fault, UsageError
from pearl.reproduce.rows import Row, judge
from pearl.reproduce.selection import Selected, SelectionKey, select
from pearl.reproduce.simulate import Effort, Key, Runs, Simulated, runs_for, simulated
from pearl.reproduce.targets import Target, load_targets
from pearl.reproduce.world import RunFigures, RunKey, simulate_run

NOTES = Path(__file__).parent / "notes.yaml"
"""Explanations of rows, by id, written after looking at the cause."""
Told = Callable[[str], None]
Job = Key | Target
Found = RunFigures | Selected | Simulated


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be simulated for some rows."""

    effort: Effort
    runs: tuple[Key, ...]
    """Each once, however many rows share it."""
    alone: tuple[Target, ...]
    """Rows of batches on fixed pools."""

    def __len__(self) -> int:
        return len(self.runs) + len(self.alone)


def choose_targets(sections: Sequence[str], models: Sequence[str] = ()) -> tuple[Target, ...]:
    """The rows of the sections (`6` stands for 6.2 to 6.5.2) and models given, or all.

    Raises UsageError with every section and every model that adds none: a check of less than was asked for may pass.
    """
    targets = load_targets()
    chosen = tuple(
        target
        for target in targets
        if (not sections or any(_in_section(target, section) for section in sections))
        and (not models or target.model in models)
    )
    without = [section for section in sections if not any(_in_section(target, section) for target in chosen)]
    faults = [_no_rows("section", name, [target.section for target in targets], models) for name in without]
    without = [model for model in models if all(target.model != model for target in chosen)]
    faults += [_no_rows("model", name, [target.model for target in targets], sections) for name in without]
    if faults:
        raise UsageError(faults)
    return chosen


def _no_rows(kind: str, name: str, known: Sequence[str], beside: Sequence[str]) -> Fault:
    among = f" with {', '.join(beside)}" if beside else ""
    return Fault(message=f"no rows in {kind} {name}{among}; {kind}s: {', '.join(dict.fromkeys(known))}")


def plan_work(targets: Sequence[Target], effort: Effort) -> Work:
    """What the rows need."""
    keys = {target.id: tuple(runs_for(target, effort)) for target in targets}
    return Work(
        effort=effort,
        runs=tuple(dict.fromkeys(key for needed in keys.values() for key in needed)),
        alone=tuple(target for target in targets if not keys[target.id]),
    )


def reproduce(targets: Sequence[Target], *, effort: Effort, jobs: int, told: Told = lambda _: None) -> tuple[Row, ...]:
    """The rows, in the order given; `told` hears of every part that is done."""
    figures: dict[RunKey, RunFigures] = {}
    selected: dict[SelectionKey, Selected] = {}
    alone: dict[str, Simulated] = {}
    for job, found in _carry_out(plan_work(targets, effort), jobs):
        match job, found:
            case RunKey(), RunFigures():
                figures[job] = found
            case SelectionKey(), Selected():
                selected[job] = found
            case Target(), Simulated():
                alone[job.id] = found
        told(_name(job))
    runs = Runs(figures=figures, selected=selected)
    notes = read_notes()
    return tuple(judge(target, alone.get(target.id) or simulated(target, effort, runs), notes) for target in targets)


def read_notes() -> Mapping[str, str]:
    """Explanations by row id."""
    notes = yaml.safe_load(NOTES.read_text(encoding="utf-8")) or {}
    return {str(row): " ".join(str(text).split()) for row, text in notes.items()}


def _carry_out(work: Work, jobs: int) -> Iterator[tuple[Job, Found]]:
    every: tuple[Job, ...] = (*work.runs, *work.alone)
    processes = min(jobs, len(every))
    if processes <= 1:
        for job in every:
            yield job, _do(job, work.effort)
        return
    with ProcessPoolExecutor(max_workers=processes) as pool:
        waiting = {pool.submit(_do, job, work.effort): job for job in every}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _do(job: Job, effort: Effort) -> Found:
    match job:
        case RunKey():
            return simulate_run(job)
        case SelectionKey():
            return select(job)
        case Target():
            return simulated(job, effort, Runs())
    assert_never(job)


def _name(job: Job) -> str:
    match job:
        case RunKey():
            where = job.segment.value if job.segment else "no spot GPUs"
            return f"{job.model}, {job.policy}, {job.rollout_gpus} GPUs, {where}, B = {job.batch}, seed {job.seed}"
        case SelectionKey():
            return f"{job.model}, every configuration of {job.workers} GPUs"
        case Target():
            return job.id
    assert_never(job)


def _in_section(target: Target, wanted: str) -> bool:
    return target.section == wanted or target.section.startswith(f"{wanted}.")
