"""Cold start of the command line, as a ratio to the libraries that it cannot do without, in one run.

    python benchmarks/startup.py [--pairs N]

Measured in pairs, one after the other, so that the load of the machine falls on both; the median ratio counts. Exit
code 1 where a ratio exceeds its limit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUN_PEARL = "from pearl.cli.main import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command line of PEARL, the imports it is compared with, and how many times as long it may take."""

    arguments: tuple[str, ...]
    baseline: str
    limit: float


CASES = (
    Case(arguments=("--help",), baseline="import click, pydantic", limit=1.5),
    Case(
        arguments=("solve", str(ROOT / "scenarios" / "qwen3-8b-swe.yaml")),
        baseline="from ortools.sat.python import cp_model",
        limit=2.0,
    ),
)


def seconds(program: str, arguments: Sequence[str] = ()) -> float:
    """Wall time of a fresh interpreter that runs `program`, which must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    command = [sys.executable, "-c", program, *arguments]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def median_pair(case: Case, pairs: int) -> tuple[float, float, float]:
    """Median seconds of PEARL and of its baseline, and the median of their ratios."""
    seconds(case.baseline)
    seconds(RUN_PEARL, case.arguments)
    samples = [(seconds(RUN_PEARL, case.arguments), seconds(case.baseline)) for _ in range(pairs)]
    ratio = statistics.median(pearl / base for pearl, base in samples)
    return statistics.median(p for p, _ in samples), statistics.median(b for _, b in samples), ratio


def main() -> int:
    """Print the table; 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=11)
    pairs = parser.parse_args().pairs
    print(f"{'command':40} {'pearl':>8} {'baseline':>8} {'ratio':>6} {'limit':>6}")
    missed = 0
    for case in CASES:
        pearl, base, ratio = median_pair(case, pairs)
        shown = " ".join(("pearl", *(Path(argument).name for argument in case.arguments)))
        print(f"{shown:40} {pearl:7.3f}s {base:7.3f}s {ratio:6.2f} {case.limit:6.2f}")
        missed += ratio > case.limit
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
