"""Agreement of every exact solver with enumeration on random problems, tier by tier.

    python benchmarks/agreement.py [--problems 1000] [--seed 0] [--solver cpsat --solver highs …]

Prints a table; exits 1 on a mismatch. Without `--solver`, every available exact solver takes part.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from time import perf_counter

from pearl.core.problem import DecisionProblem
from pearl.errors import SolverError
from pearl.solving.driver import solve_problem
from pearl.solving.protocol import Solution, Solver
from pearl.solving.random_problems import random_problem
from pearl.solving.registry import catalogue, resolve

REFERENCE = "enumerate"


@dataclass(kw_only=True)
class Tally:
    """What one solver did."""

    solver: Solver
    agreed: int = 0
    mismatches: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def compare(self, number: int, problem: DecisionProblem, wanted: Solution) -> None:
        """Solve and compare status and every tier value."""
        started = perf_counter()
        try:
            found = solve_problem(problem, self.solver)
        except SolverError as error:
            self.mismatches.append(f"problem {number}: {error}")
            return
        finally:
            self.seconds += perf_counter() - started
        if (found.status, found.tier_values) == (wanted.status, wanted.tier_values):
            self.agreed += 1
        else:
            self.mismatches.append(
                f"problem {number}: {found.status} {found.tier_values}, wanted {wanted.status} {wanted.tier_values}"
            )


def main() -> int:
    """Run the comparison; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--solver", action="append", default=[])
    arguments = parser.parse_args()
    specs = arguments.solver or [info.id for info in catalogue() if info.available and info.id != REFERENCE]
    tallies = {spec: Tally(solver=resolve(spec)) for spec in specs}
    reference, rng = resolve(REFERENCE), Random(arguments.seed)
    statuses: Counter[str] = Counter()
    for number in range(arguments.problems):
        problem = random_problem(rng)
        wanted = solve_problem(problem, reference)
        statuses[wanted.status] += 1
        for tally in tallies.values():
            tally.compare(number, problem, wanted)
    answered = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    print(f"{arguments.problems} problems, seed {arguments.seed}: {answered}")
    print(f"{'solver':<16}{'agreed':>8}{'mismatch':>10}{'ms/problem':>12}")
    for spec, tally in tallies.items():
        each_ms = 1e3 * tally.seconds / arguments.problems
        print(f"{spec:<16}{tally.agreed:>8}{len(tally.mismatches):>10}{each_ms:>12.1f}")
    for spec, tally in tallies.items():
        for line in tally.mismatches[:5]:
            print(f"{spec}: {line}", file=sys.stderr)
    return 1 if any(tally.mismatches for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
