"""Everything simulated that docs/validation.md reports, in short form or in full.

    python benchmarks/validation.py            a few minutes
    python benchmarks/validation.py --full     the figures of the page; --jobs N for the grid of scenarios

Section 5 of the page needs live workers: benchmarks/predicted_measured.py.

In short form the grid is too small for its 95th percentile to be held to a target; it is printed all the same.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import aisimulate
import makespan_accuracy
import stability
import step_times


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is run."""

    scenarios: int
    seeds: int
    aisimulate_seeds: int
    horizon_s: float
    periods_s: tuple[float, ...]


SHORT = Effort(scenarios=12, seeds=2, aisimulate_seeds=2, horizon_s=900.0, periods_s=(300.0,))
FULL = Effort(scenarios=200, seeds=4, aisimulate_seeds=8, horizon_s=7200.0, periods_s=stability.PERIODS_S)
FIRST_SCENARIO = 8000
"""Seeds from here on are held out: no term of a predictor was chosen with them."""


def validate(effort: Effort, *, jobs: int) -> bool:
    """Run and print everything; whether what was run met its targets."""
    print("== Simulated engine against tables of step times")
    step_times.report(step_times.TABLES)
    print("\n== Simulator against AISimulate")
    met = aisimulate.report(seeds=effort.aisimulate_seeds)
    print("\n== Predictors against the simulator")
    results = makespan_accuracy.run_grid(
        scenarios=effort.scenarios, seeds=effort.seeds, first=FIRST_SCENARIO, jobs=jobs
    )
    accurate = makespan_accuracy.report(results)
    print("\n== Stability of policies")
    stable = stability.report(list(stability.POLICIES), horizon_s=effort.horizon_s, periods_s=effort.periods_s)
    return met and stable and (accurate or effort is SHORT)


def main() -> None:
    """Exit 1 where a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the effort behind docs/validation.md")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    sys.exit(0 if validate(FULL if options.full else SHORT, jobs=options.jobs) else 1)


if __name__ == "__main__":
    main()
