"""The simulator against AISimulate, a public simulator: eight configurations of Qwen3-8B on 8 H200.

    python benchmarks/aisimulate.py --seeds 8 [--rows rows.jsonl]

Workload: 128 trajectories of 4 to 12 turns; first prompt 2,048 tokens, answers 300, tool results 1,500,
2 s of tool time. Two comparisons, both with the shipped profile `qwen3-8b-h200`:

published  figures of AISimulate that were measured elsewhere, beside ours of trajectories with 4 to 12 turns;
rerun      figures of AISimulate 0.13.0.dev202610270000000085 on rows that `--rows` writes, beside ours on the same
           trajectories; and ours with the step times that AISimulate assumes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean

from pearl.core.cluster import Counts
from pearl.core.distribution import Distribution
from pearl.core.engine import EngineProfile, KvTransfer
from pearl.core.workload import Routing, Workload
from pearl.scenario.engines import load_profile
from pearl.sim.batch import simulate_batch
from pearl.sim.trajectories import Trajectory, Turn

TRAJECTORIES = 128
TURNS = (4, 12)
FIRST_PROMPT, ANSWER, TOOL_RESULT = 2048, 300, 1500
TOOL_S = 2.0
PINNED = "8C pinned"
CONFIGURATIONS: Mapping[str, Counts] = {
    "8C": Counts(colocated=8),
    **{f"{p}P{8 - p}D": Counts(prefill=p, decode=8 - p) for p in range(1, 7)},
    PINNED: Counts(colocated=8),
}
PUBLISHED_S: Mapping[str, float] = {
    "8C": 98.1,
    "1P7D": 262,
    "2P6D": 107,
    "3P5D": 94.5,
    "4P4D": 91.9,
    "5P3D": 97.4,
    "6P2D": 110,
    PINNED: 86.5,
}
RERUN_SEEDS = (0, 1, 2)
RERUN_S: Mapping[str, tuple[float, ...]] = {
    "8C": (87.4, 89.5, 87.0),
    "1P7D": (259.7, 311.2, 271.0),
    "2P6D": (85.0, 100.2, 91.5),
    "3P5D": (78.6, 82.3, 73.9),
    "4P4D": (76.0, 80.7, 76.6),
    "5P3D": (81.6, 86.0, 82.2),
    "6P2D": (98.9, 105.6, 99.9),
    PINNED: (77.3, 81.9, 74.3),
}
"""By seed of the rows; pinned as eight runs of one worker with every eighth row each, the longest of them."""
DECODE_OVERHEAD_S = 0.96e-3
"""What AISimulate adds to every decode step, over the step-time tables: 0.95 to 0.97 ms at batches of 1 to 32."""
PREFILL_OVERHEAD_S = 6e-3
"""What it adds to a lone prefill of 4,096 or 8,192 tokens: 6 to 8 ms."""
LEAST_SPEARMAN = 0.9


def turns(seed: int) -> list[int]:
    """Turns of each trajectory, uniform over 4 to 12."""
    rng = Random(seed)
    return [rng.randint(*TURNS) for _ in range(TRAJECTORIES)]


def trajectories(seed: int, *, final_answer: bool) -> list[Trajectory]:
    """The batch; with `final_answer`, a row's turns are followed by one more answer, as AISimulate expands them."""
    batch = []
    for count in turns(seed):
        prompts = (FIRST_PROMPT, *[TOOL_RESULT] * (count - 1 + final_answer))
        batch.append(
            tuple(Turn(new_prompt_tokens=prompt, output_tokens=ANSWER, environment_s=TOOL_S) for prompt in prompts)
        )
    return batch


def row(count: int) -> dict[str, object]:
    """A session as AISimulate reads it (format applied_compute_agentic)."""
    return {
        "num_turns": count,
        "input_prompt_length": FIRST_PROMPT,
        "assistant_response_length": [ANSWER] * count,
        "tool_call_output_length": [TOOL_RESULT] * count,
        "tool_call_latency": [TOOL_S] * count,
        "final_assistant_response_length": ANSWER,
    }


def simulated_s(engine: EngineProfile, *, seeds: Sequence[int], final_answer: bool) -> dict[str, float]:
    """Mean makespan of each configuration over the seeds, in seconds."""
    batches = [trajectories(seed, final_answer=final_answer) for seed in seeds]
    return {
        label: mean(
            simulate_batch(_workload(label), engine, counts=counts, seed=0, trajectories=batch).makespan_s
            for batch in batches
        )
        for label, counts in CONFIGURATIONS.items()
    }


def _workload(label: str) -> Workload:
    constant = Distribution.constant
    return Workload(
        trajectories=TRAJECTORIES,
        turns=Distribution.constant(sum(TURNS) / 2),
        first_prompt_tokens=constant(FIRST_PROMPT),
        new_prompt_tokens=constant(TOOL_RESULT),
        output_tokens=constant(ANSWER),
        environment_s=constant(TOOL_S),
        max_context_tokens=40_000,
        routing=Routing.AFFINITY if label == PINNED else Routing.ROUND_ROBIN,
    )


def with_overheads(engine: EngineProfile) -> EngineProfile:
    """The profile with AISimulate's assumptions: its overheads per step, and transfers that take no time."""
    return replace(
        engine,
        prefill=replace(engine.prefill, p0_s=engine.prefill.p0_s + PREFILL_OVERHEAD_S),
        decode=replace(engine.decode, c0_s=engine.decode.c0_s + DECODE_OVERHEAD_S),
        transfer=KvTransfer(latency_s=0.0, bandwidth_bytes_per_s=1.0, bytes_per_token=0.0),
    )


def spearman(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Rank correlation of two sets of makespans without ties."""
    ranks = [{label: rank for rank, label in enumerate(sorted(of, key=of.__getitem__))} for of in (ours, theirs)]
    size = len(ours)
    return 1 - 6 * sum((ranks[0][label] - ranks[1][label]) ** 2 for label in ours) / (size * (size**2 - 1))


def best_unpinned(makespans: Mapping[str, float]) -> Counts:
    """The best of the seven configurations under round robin."""
    return CONFIGURATIONS[min((label for label in makespans if label != PINNED), key=makespans.__getitem__)]


def agrees(ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    """Same best mode, best ratio at most a worker off, and ranks that correlate."""
    one, other = best_unpinned(ours), best_unpinned(theirs)
    return one.mode is other.mode and abs(one.prefill - other.prefill) <= 1 and spearman(ours, theirs) >= LEAST_SPEARMAN


def _line(name: str, makespans: Mapping[str, float]) -> str:
    return f"{name:34}" + "".join(f"{makespans[label]:10.1f}" for label in CONFIGURATIONS)


def compare(name: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    """Print ours below theirs, with the ratio; whether the ranking agrees."""
    same = agrees(ours, theirs)
    print(_line(name, ours))
    ratios = "".join(f"{ours[label] / theirs[label]:10.2f}" for label in CONFIGURATIONS)
    print(f"{'  over AISimulate':34}{ratios}")
    print(
        f"  Spearman {spearman(ours, theirs):.2f}; best {best_unpinned(ours).label()}, "
        f"AISimulate {best_unpinned(theirs).label()}: {'agrees' if same else 'DISAGREES'}"
    )
    return same


def report(*, seeds: int) -> bool:
    """Print both comparisons; whether every ranking agrees."""
    engine = load_profile("qwen3-8b-h200")
    print("Makespans in seconds, simulated by both; nothing is fitted to these figures")
    print(f"{'':34}" + "".join(f"{label:>10}" for label in CONFIGURATIONS))
    print(_line("AISimulate, published", PUBLISHED_S))
    same = compare(
        f"PEARL, {seeds} seeds, 4-12 answers",
        simulated_s(engine, seeds=range(seeds), final_answer=False),
        PUBLISHED_S,
    )
    rerun = {label: mean(figures) for label, figures in RERUN_S.items()}
    print(_line("\nAISimulate 0.13 dev, 5-13 answers", rerun))
    same &= compare("PEARL, same rows", simulated_s(engine, seeds=RERUN_SEEDS, final_answer=True), rerun)
    assumed = simulated_s(with_overheads(engine), seeds=RERUN_SEEDS, final_answer=True)
    return compare("PEARL, same rows and overheads", assumed, rerun) and same


def main() -> None:
    """Compare; exit 1 where a ranking differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rows", type=Path, help="write the rows of --row-seed for AISimulate, and compare nothing")
    parser.add_argument("--row-seed", type=int, default=0)
    options = parser.parse_args()
    if options.rows:
        lines = (json.dumps(row(count)) + "\n" for count in turns(options.row_seed))
        options.rows.write_text("".join(lines), encoding="utf-8")
        return
    sys.exit(0 if report(seeds=options.seeds) else 1)


if __name__ == "__main__":
    main()
