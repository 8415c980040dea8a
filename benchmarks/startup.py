"""Cold start of the command line, as a ratio to the libraries that it cannot do without, in one run.

    python benchmarks/startup.py [--pairs N]

Measured in pairs, one after the other, so that the load of the machine falls on both. Processor time counts (user and
system, the least of each side); the median ratio of the wall times is shown beside it. Both sides find their bytecode
compiled, as an installation leaves it. Exit code 1 where the ratio of processor times exceeds its limit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds that a process took."""

    wall_s: float
    cpu_s: float


def cost(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """What a fresh interpreter that runs `program` takes; it must succeed."""
    start = time.perf_counter()
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(wall_s=wall_s, cpu_s=usage.ru_utime + usage.ru_stime)


def pairs_of(case: Case, pairs: int, environment: Mapping[str, str]) -> list[tuple[Cost, Cost]]:
    """Costs of PEARL and of its baseline, one after the other, once the bytecode of both is there."""
    cost(case.baseline, (), environment)
    cost(RUN_PEARL, case.arguments, environment)
    return [(cost(RUN_PEARL, case.arguments, environment), cost(case.baseline, (), environment)) for _ in range(pairs)]


def main() -> int:
    """Print the table; 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=11)
    pairs = parser.parse_args().pairs
    print(f"{'command':32} {'pearl':>8} {'baseline':>8} {'ratio':>6} {'wall':>6} {'limit':>6}")
    missed = 0
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for case in CASES:
            samples = pairs_of(case, pairs, environment)
            pearl_s = min(pearl.cpu_s for pearl, _ in samples)
            base_s = min(base.cpu_s for _, base in samples)
            ratio = pearl_s / base_s
            wall = statistics.median(pearl.wall_s / base.wall_s for pearl, base in samples)
            shown = " ".join(("pearl", *(Path(argument).name for argument in case.arguments)))
            print(f"{shown:32} {pearl_s:7.3f}s {base_s:7.3f}s {ratio:6.2f} {wall:6.2f} {case.limit:6.2f}", flush=True)
            missed += ratio > case.limit
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
