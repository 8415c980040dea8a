"""Mutated policy and scenario files: each must load, or be refused with faults that name file and line, within 2 s.

    python benchmarks/fuzz.py [--number 10000] [--seed 0]

Half of the files are policies, half scenarios; the same seed makes the same files. A file that fails is tried once
more, since on a busy machine any file may be slow once. Prints the counts by outcome and the slowest file of each kind
(wall time). Exit code 1 where a file failed twice, with the first such findings; what failed once is shown too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
FINDINGS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One file: whether it was loaded, how long that took, and what was wrong with the way it was refused."""

    loaded: bool
    seconds: float
    problem: str = ""
    again: str = ""
    """What was wrong at the first try, where it was tried again."""


def main() -> int:
    """Print the table; 1 where a file misbehaved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # The fuzzers are those of the tests, which are not installed.
    sys.path.insert(0, str(ROOT))
    policies = arguments.number // 2
    kinds: dict[str, Callable[[], Iterator[Tried]]] = {
        "policy": partial(tried_policies, policies, arguments.seed),
        "scenario": partial(tried_scenarios, arguments.number - policies, arguments.seed),
    }
    print(f"{'kind':<10}{'files':>8}{'loaded':>8}{'refused':>8}{'again':>8}{'wrong':>8}{'slowest':>10}")
    problems: list[str] = []
    once: list[str] = []
    for kind, tried in kinds.items():
        results = list(tried())
        wrong = [result.problem for result in results if result.problem]
        loaded = sum(result.loaded for result in results)
        slowest = max((result.seconds for result in results), default=0.0)
        refused = len(results) - loaded - len(wrong)
        again = [result.again for result in results if result.again]
        counts = "".join(f"{count:>8}" for count in (len(results), loaded, refused, len(again), len(wrong)))
        print(f"{kind:<10}{counts}{slowest:>8.2f} s", flush=True)
        problems += wrong
        once += again
    for problem in (*problems[:FINDINGS_SHOWN], *once[:FINDINGS_SHOWN]):
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def tried_policies(number: int, seed: int) -> Iterator[Tried]:
    """Mutations of the built-in policies."""
    from tests.policy.fuzz import outcome, run

    with TemporaryDirectory() as folder:
        for first in run(number, seed=seed, folder=Path(folder)):
            found = outcome(Path(folder, "mutated.yaml"), first.text) if first.problem else first
            yield Tried(loaded=found.accepted, seconds=found.seconds, problem=found.problem, again=first.problem)


def tried_scenarios(number: int, seed: int) -> Iterator[Tried]:
    """Mutations of the shipped scenarios, each from a seed of its own."""
    for i in range(number):
        first = tried_scenario(seed * number + i)
        yield replace(tried_scenario(seed * number + i), again=first.problem) if first.problem else first


def tried_scenario(seed: int) -> Tried:
    """The mutation of one seed."""
    from tests.scenario.fuzz import fuzz

    try:
        verdict = next(fuzz(1, seed=seed))
    except Exception as e:
        return Tried(loaded=False, seconds=0.0, problem=f"{type(e).__name__}: {e}")
    return Tried(loaded=verdict.loaded, seconds=verdict.seconds)


if __name__ == "__main__":
    sys.exit(main())
