"""Predictors against the simulator: makespan error and regret of the decision, on a seeded random grid.

    python benchmarks/makespan_accuracy.py --scenarios 200 --seeds 4 --classes --plot accuracy.png

Error: predicted over simulated makespan, each the mean over the same seeds, for the configurations that are simulated
whatever was chosen. Regret: how much longer the configuration that the predictor chooses among all takes than the best
of those simulated. `fair` picks the best on half of the seeds and compares on the other half, since the smallest of
noisy means is too small. Exit 1 if the network predictor misses a target.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from multiprocessing import Pool
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from makespan_grid import PREDICTORS, Floats, Result, from_json, run_case

MOST_MEDIAN_ERROR = 0.08
MOST_MEAN_REGRET = 0.01
MOST_P95_REGRET = 0.03
CLEAR_GAIN = 0.02
"""Share by which colocated must be beaten for a scenario to count as one where the mode matters."""


def run_grid(*, scenarios: int, seeds: int, first: int, jobs: int) -> list[Result]:
    """Simulate and predict `scenarios` scenarios, the seed of the first being `first`, on `jobs` processes."""
    tasks = [(first + index, seeds) for index in range(scenarios)]
    with Pool(jobs) as pool:
        return list(pool.imap(run_case, tasks, chunksize=1))


def report(results: Sequence[Result]) -> bool:
    """Print the table; whether the network predictor meets its targets."""
    seeds = len(results[0].runs[0])
    noise = np.nanmean([result.noise for result in results])
    print(
        f"{len(results)} scenarios, {sum(result.grid for result in results)} configurations judged, "
        f"{sum(len(result.runs) for result in results)} simulated, {seeds} seeds each: standard error {noise:.1%}"
    )
    print(f"{'':26}  median |error|  mean error  p90 |error|  mean regret  p95 regret  largest  fair: mean     p95")
    for name in PREDICTORS:
        errors = np.concatenate([result.errors(name) for result in results])
        regrets = np.array([result.regret(name) for result in results])
        fair = np.array([result.fair_regret(name) for result in results])
        size = np.abs(errors)
        print(
            f"{name:26}  {np.median(size):14.1%}  {errors.mean():10.1%}  {np.quantile(size, 0.9):11.1%}  "
            f"{_regret(regrets)}  {fair.mean():10.2%}  {np.quantile(fair, 0.95):6.1%}"
        )
        met = bool(
            np.median(size) <= MOST_MEDIAN_ERROR
            and regrets.mean() <= MOST_MEAN_REGRET
            and np.quantile(regrets, 0.95) <= MOST_P95_REGRET
        )
    _report_where_it_matters(results)
    for name, pick in BLIND.items():
        regrets = np.array([result.regret_of(pick(result)) for result in results])
        print(f"{name:26}  {'':14}  {'':10}  {'':11}  {_regret(regrets)}")
    return met


def _report_where_it_matters(results: Sequence[Result], predictor: str = "network") -> None:
    """Regrets apart where colocated is best, and where disaggregation gains so much that missing it would show."""
    gains = np.array([result.regret_of(0) for result in results])
    regrets = np.array([result.regret(predictor) for result in results])
    for name, chosen in (
        ("colocated is best", gains == 0),
        (f"it loses {CLEAR_GAIN:.0%} or more", gains >= CLEAR_GAIN),
    ):
        if chosen.any():
            print(
                f"{f'{name}: {chosen.sum()}':26}  mean regret of {predictor} {regrets[chosen].mean():.2%}, "
                f"of always colocated {gains[chosen].mean():.2%}"
            )


def _half(result: Result) -> int:
    """The ratio of the grid nearest to as many prefill as decode workers."""
    case = result.case
    prefill = [counts.prefill for counts in case.configurations]
    return int(np.argmin([abs(count - case.workers / 2) if count else np.inf for count in prefill]))


BLIND: dict[str, Callable[[Result], int]] = {"always colocated": lambda _: 0, "always half and half": _half}
"""What decisions without a prediction cost, to tell how much there is to decide."""


def _regret(regrets: Floats) -> str:
    return f"{regrets.mean():11.2%}  {np.quantile(regrets, 0.95):10.2%}  {regrets.max():7.1%}"


def report_classes(results: Sequence[Result], predictor: str = "network") -> None:
    """Print errors and regrets by class of scenario."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        for question, answer in result.case.classes.items():
            groups[question, answer].append(result)
    print(f"\n{predictor} by class                     scenarios  median |error|  mean error  mean regret  p95 regret")
    for (question, answer), group in sorted(groups.items()):
        errors = np.concatenate([result.errors(predictor) for result in group])
        regrets = [result.regret(predictor) for result in group]
        print(
            f"{question:17} {answer:19}  {len(group):9}  {np.median(np.abs(errors)):14.1%}  {errors.mean():10.1%}  "
            f"{np.mean(regrets):11.2%}  {np.quantile(regrets, 0.95):10.2%}"
        )


def report_worst(results: Sequence[Result], count: int, predictor: str = "network") -> None:
    """Print the scenarios of largest regret, and the configurations of largest error."""
    print(f"\nLargest regrets of {predictor}: simulated seconds, and the error of the prediction")
    for result in sorted(results, key=lambda each: -each.regret(predictor))[:count]:
        print(
            f"{result.regret(predictor):6.1%}  fair {result.fair_regret(predictor):+.1%}  {result.seed}  {result.case}"
        )
        chosen = result.choice[predictor]
        parts = []
        for index in sorted(range(len(result.labels)), key=lambda i: float(result.simulated[i]))[:6]:
            error = result.predicted[predictor][index] / result.simulated[index] - 1
            parts.append(f"{result.labels[index]}{'*' * (index == chosen)} {result.simulated[index]:.1f} {error:+.0%}")
        print("        " + "  ".join(parts))
    print(f"\nLargest errors of {predictor}: predicted over simulated, and how far that configuration is from the best")
    every = [(error, result, index) for result in results for index, error in enumerate(result.errors(predictor))]
    for error, result, index in sorted(every, key=lambda each: -abs(each[0]))[:count]:
        print(f"{error:+6.0%}  {result.labels[index]} {result.regret_of(index):+.0%}  {result.seed}  {result.case}")


def plot(results: Sequence[Result], path: Path) -> None:
    """Predicted against simulated makespan, one point per configuration, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2, sharex=True, sharey=True), PREDICTORS, strict=True):
        for mode, colour, marker, chosen in (
            ("disaggregated", "#0072B2", ".", slice(1, None)),
            ("colocated", "#D55E00", "x", slice(0, 1)),
        ):
            simulated = np.concatenate([result.simulated[: result.grid][chosen] for result in results])
            errors = np.concatenate([result.errors(name)[chosen] for result in results])
            axes.scatter(simulated, simulated * (1 + errors), s=14, c=colour, marker=marker, linewidths=0.8, label=mode)
        low, high = simulated.min() / 2, simulated.max() * 4
        axes.plot([low, high], [low, high], color="0.4", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="simulated makespan, s", title=name)
    figure.axes[0].set_ylabel("predicted makespan, s")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the grid, or read one that was run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=4, help="simulations per configuration")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first scenario")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--worst", type=int, default=5, help="scenarios of largest regret and error to print")
    parser.add_argument("--classes", action="store_true", help="also print errors and regrets by class of scenario")
    parser.add_argument("--plot", type=Path, help="PNG of predicted against simulated makespans (needs matplotlib)")
    parser.add_argument("--save", type=Path, help="keep every result as a line of JSON")
    parser.add_argument("--read", type=Path, help="report on results that were kept, and simulate nothing")
    options = parser.parse_args()
    if options.read:
        results = [from_json(json.loads(line)) for line in options.read.read_text(encoding="utf-8").splitlines()]
    else:
        results = run_grid(scenarios=options.scenarios, seeds=options.seeds, first=options.first, jobs=options.jobs)
    if options.save:
        options.save.write_text("".join(json.dumps(result.to_json()) + "\n" for result in results), encoding="utf-8")
    met = report(results)
    if options.classes:
        report_classes(results)
    if options.worst:
        report_worst(results, options.worst)
    if options.plot:
        plot(results, options.plot)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
