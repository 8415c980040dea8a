"""The simulator's engine, one step at a time, against tables of step times.

    python benchmarks/step_times.py [--tables FOLDER] [--folds 5]

Every row is run as the step that it is: one prefill of n tokens after c cached ones, or one decode step of b sequences
with context c. Twice: with the built-in profile, which was fitted to these rows, and with profiles fitted to the other
folds of the rows, so that no row is judged by a profile that has seen it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pearl.core.cluster import Counts
from pearl.core.distribution import Distribution
from pearl.core.engine import EngineProfile, KvTransfer, PrefillCost
from pearl.core.workload import Routing, Workload
from pearl.scenario.engines import builtin_profiles, load_profile
from pearl.scenario.fit import GPU_MEMORY_BYTES, MODELS, fit_profile
from pearl.scenario.step_times import DecodePoint, PrefillPoint, StepTimes, read_step_times
from pearl.sim.batch import BatchResult, simulate_batch
from pearl.sim.trajectories import Trajectory, Turn

TABLES = Path(__file__).resolve().parents[2] / "shared" / "data" / "step-times"
AMPLE_TOKENS = 10**9
"""Memory and step size at which every row is one step: some rows are larger than any GPU, none is chunked."""
FOLDS = 5

Point = TypeVar("Point")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table: what it says, and what the simulator takes, in seconds."""

    kind: str
    """`prefill`, `prefix` (a prefill after cached tokens) or `decode`."""
    label: str
    table_s: float
    simulated_s: float
    fits: bool
    """Whether the engine's KV memory holds the sequences of the row."""

    @property
    def error(self) -> float:
        """Relative error."""
        return self.simulated_s / self.table_s - 1


def prefill_row(point: PrefillPoint, engine: EngineProfile) -> Row:
    """One prefill of `new_tokens` after `cached_tokens`: the second turn of a trajectory, or its first."""
    new, cached = point.new_tokens, point.cached_tokens
    if not cached:
        seconds = _run(engine, [_turns((new, 1))], Counts(colocated=1)).makespan_s
    else:
        before = _run(engine, [_turns((cached, 1))], Counts(colocated=1)).makespan_s
        # The last token of a turn has no KV yet: it is prefilled with the next prompt.
        seconds = _run(engine, [_turns((cached, 1), (new - 1, 1))], Counts(colocated=1)).makespan_s - before
    return Row(
        kind="prefix" if cached else "prefill",
        label=f"{cached}+{new}",
        table_s=point.seconds,
        simulated_s=seconds,
        fits=cached + new <= engine.kv_colocated_tokens,
    )


def decode_row(point: DecodePoint, engine: EngineProfile) -> Row:
    """One decode step of `batch` sequences: prefills and transfers take no time, so all decode their second token."""
    context = point.context_tokens // point.batch
    instant = replace(
        engine,
        prefill=PrefillCost(p0_s=0.0, p1_s=0.0, p2_s=0.0),
        transfer=KvTransfer(latency_s=0.0, bandwidth_bytes_per_s=1.0, bytes_per_token=0.0),
    )
    result = _run(instant, [_turns((context - 1, 2))] * point.batch, Counts(prefill=1, decode=1))
    if result.tally.decode_steps != 1:
        raise AssertionError(f"{result.tally.decode_steps} decode steps; the row is one")
    return Row(
        kind="decode",
        label=f"{point.batch} x {context}",
        table_s=point.seconds,
        simulated_s=result.makespan_s,
        fits=point.context_tokens <= engine.kv_decode_tokens,
    )


def _turns(*prompts_and_outputs: tuple[int, int]) -> Trajectory:
    return tuple(
        Turn(new_prompt_tokens=prompt, output_tokens=output, environment_s=0.0)
        for prompt, output in prompts_and_outputs
    )


def _run(engine: EngineProfile, batch: list[Trajectory], counts: Counts) -> BatchResult:
    ample = replace(
        engine,
        chunk_tokens=AMPLE_TOKENS,
        max_sequences=max(engine.max_sequences, len(batch)),
        kv_decode_tokens=AMPLE_TOKENS,
        kv_colocated_tokens=AMPLE_TOKENS,
    )
    one = Distribution.constant(1)
    workload = Workload(
        trajectories=len(batch),
        turns=one,
        first_prompt_tokens=one,
        new_prompt_tokens=one,
        output_tokens=one,
        environment_s=Distribution.constant(0),
        max_context_tokens=AMPLE_TOKENS,
        routing=Routing.AFFINITY,
    )
    return simulate_batch(workload, ample, counts=counts, seed=0, trajectories=batch)


def rows_of(table: StepTimes, engine: EngineProfile) -> list[Row]:
    """Every row of a table with one profile."""
    return [
        *(prefill_row(point, engine) for point in table.prefill),
        *(decode_row(point, engine) for point in table.decode),
    ]


def held_out_rows(table: StepTimes, *, gpu: str, folds: int) -> list[Row]:
    """Every row of a table, with a profile fitted to the folds that the row is not in; every `folds`-th is one fold."""
    fit = partial(fit_profile, name="fold", gpu=gpu, shape=MODELS[table.model], memory_bytes=GPU_MEMORY_BYTES[gpu])
    rows = []
    for fold in range(folds):
        seen = replace(
            table,
            prefill=_but(table.prefill, fold, folds),
            decode=_but(table.decode, fold, folds),
        )
        unseen = replace(table, prefill=table.prefill[fold::folds], decode=table.decode[fold::folds])
        rows += rows_of(unseen, fit(seen))
    return rows


def _but(points: tuple[Point, ...], fold: int, folds: int) -> tuple[Point, ...]:
    return tuple(point for index, point in enumerate(points) if index % folds != fold)


def profiles_of(tables: dict[str, StepTimes], source: str) -> Iterator[tuple[EngineProfile, StepTimes]]:
    """The built-in profiles that were fitted to a file of tables, each with its table."""
    for name in builtin_profiles():
        engine = load_profile(name)
        if engine.fit is not None and engine.fit.source == source and engine.model in tables:
            yield engine, tables[engine.model]


def summary(rows: Iterable[Row]) -> str:
    """Mean and maximum of the relative errors by kind, and of the decode rows that memory can hold."""
    rows = list(rows)
    parts = []
    for kind in ("prefill", "prefix", "decode"):
        parts.append(_mean_and_max([row for row in rows if row.kind == kind]))
    parts.append(_mean_and_max([row for row in rows if row.kind == "decode" and row.fits]))
    return "  ".join(parts)


def _mean_and_max(rows: list[Row]) -> str:
    sizes = [abs(row.error) for row in rows]
    return f"{len(sizes):3} {sum(sizes) / len(sizes):6.1%} {max(sizes):6.1%}" if sizes else "  0      -      -"


def report(folder: Path, *, folds: int = FOLDS, worst: int = 0) -> bool:
    """Print one line per profile, fitted and held out; whether there are tables."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        print(f"step times: no tables in {folder.name}; nothing was compared")
        return False
    print("Step seconds of the simulated engine against the tables: rows, mean and largest relative error")
    print(f"{'':32}  {'prefill':>17}  {'after a prefix':>17}  {'decode':>17}  {'decode in memory':>17}")
    for file in files:
        for engine, table in profiles_of(read_step_times(file), file.name):
            fitted = rows_of(table, engine)
            print(f"{engine.name:22} fitted     {summary(fitted)}")
            held_out = held_out_rows(table, gpu=engine.gpu, folds=folds)
            print(f"{engine.name:22} held out   {summary(held_out)}", flush=True)
            for row in sorted(fitted, key=lambda row: -abs(row.error))[:worst]:
                print(f"    {row.error:+6.1%}  {row.kind} {row.label}")
    return True


def main() -> None:
    """Compare every table that is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of tables, *.json")
    parser.add_argument("--folds", type=int, default=FOLDS)
    parser.add_argument("--worst", type=int, default=0, help="rows of largest error to print for each profile")
    options = parser.parse_args()
    report(options.tables, folds=options.folds, worst=options.worst)


if __name__ == "__main__":
    main()
