"""A solver of your own, from nothing but the standard library: copy this file, and put your solver in `minimize`.

    pearl solvers --check path/to/yours.py:BranchAndBound
    pearl solve scenario.yaml --solver path/to/yours.py:BranchAndBound

What PEARL expects is the protocol `ModelSolver` of `pearl.solving.protocol`: an `id`, `capabilities`,
`library_version`, and `minimize`. There is nothing to inherit and nothing to register. The example is a complete, exact
depth-first branch and bound over integer intervals. It passes the conformance suite and suits small models only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pearl.solving.ir import Model, Objective, Point
from pearl.solving.protocol import Answer, Capabilities, Limits, SolveStatus

Box = list[tuple[int, int]]
"""An interval for each variable."""


class BranchAndBound:
    """Depth-first search: narrow the intervals by every row, then halve the widest one."""

    id = "template"
    """Appears in reports and in the `solver` section of the JSON output."""

    capabilities = Capabilities(note="small models only; ignores the hint")
    """`exact=False` if OPTIMAL may be wrong within a gap, `proves_infeasible=False` for a heuristic."""

    def library_version(self) -> str:
        """Version of the library behind the solver: `importlib.metadata.version("yours")` raises what PEARL expects."""
        return "1"

    def minimize(
        self,
        model: Model,
        objective: Objective,
        *,
        limits: Limits,
        hint: Point | None = None,  # noqa: ARG002  # Ignoring a hint is allowed; failing on one is not.
    ) -> Answer:
        """Minimise one objective; the driver calls this once per tier.

        - Rows are `low <= Σ coefficient·variable <= high`, either side possibly None; variables are bounded integers.
        - OPTIMAL and FEASIBLE carry a point with one value per variable, in order; INFEASIBLE and LIMIT carry none.
        - Out of time without a point is LIMIT, never INFEASIBLE. PEARL re-checks every point exactly.
        - Raise `pearl.errors.SolverError`, with your library's own words, when it fails.
        """
        search = _Search(model=model, objective=objective, deadline_s=time.monotonic() + limits.time_s)
        complete = search.run()
        if search.best is None:
            return Answer(status=SolveStatus.INFEASIBLE if complete else SolveStatus.LIMIT, detail=search.detail)
        if not complete:
            return Answer(status=SolveStatus.FEASIBLE, point=search.best, detail=search.detail)
        bound = float(search.best_value + objective.constant)
        return Answer(status=SolveStatus.OPTIMAL, point=search.best, bound=bound, detail=search.detail)


@dataclass(kw_only=True)
class _Search:
    model: Model
    objective: Objective
    deadline_s: float
    best: Point | None = None
    best_value: int = 0
    detail: str = "searched completely"

    def run(self) -> bool:
        """Search every box; False where the time ran out first."""
        stack: list[Box] = [[(v.low, v.high) for v in self.model.variables]]
        while stack:
            if time.monotonic() >= self.deadline_s:
                self.detail = "time limit"
                return False
            box = stack.pop()
            if not self._narrow(box):
                continue
            widest = max(range(len(box)), key=lambda index: box[index][1] - box[index][0], default=None)
            if widest is None or box[widest][0] == box[widest][1]:
                self.best = tuple(low for low, _ in box)
                self.best_value = sum(coefficient * self.best[index] for index, coefficient in self.objective.terms)
            else:
                stack.extend(self._halves(box, widest))
        return True

    def _halves(self, box: Box, index: int) -> tuple[Box, Box]:
        """The two halves of `box`, the one with the lower cost on top of the stack."""
        low, high = box[index]
        middle = (low + high) // 2
        lower, upper = box.copy(), box.copy()
        lower[index], upper[index] = (low, middle), (middle + 1, high)
        return (lower, upper) if dict(self.objective.terms).get(index, 0) < 0 else (upper, lower)

    def _narrow(self, box: Box) -> bool:
        """Shrink `box` in place until no row shrinks it further; False where it holds no better point."""
        rows = [(row.terms, row.low, row.high) for row in self.model.rows]
        if self.best is not None:
            rows.append((self.objective.terms, None, self.best_value - 1))
        if any(low > high for low, high in box):
            return False
        changed = True
        while changed:
            changed = False
            for terms, low, high in rows:
                before = [box[index] for index, _ in terms]
                if not _apply(terms, low, high, box):
                    return False
                changed = changed or before != [box[index] for index, _ in terms]
        return True


def _apply(terms: tuple[tuple[int, int], ...], low: int | None, high: int | None, box: Box) -> bool:
    """Shrink the intervals of one row; False where it cannot hold."""
    least = sum(c * box[i][0 if c > 0 else 1] for i, c in terms)
    most = sum(c * box[i][1 if c > 0 else 0] for i, c in terms)
    if (low is not None and most < low) or (high is not None and least > high):
        return False
    for index, coefficient in terms:
        start, stop = box[index]
        span = abs(coefficient)
        # How many steps the variable may move up from its cheap end, and down from its dear end.
        up = stop - start if high is None else min(stop - start, (high - least) // span)
        down = stop - start if low is None else min(stop - start, (most - low) // span)
        box[index] = (max(start, stop - down), start + up) if coefficient > 0 else (stop - up, min(stop, start + down))
        if box[index][0] > box[index][1]:
            return False
    return True
