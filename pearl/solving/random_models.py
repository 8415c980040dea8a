"""Small random integer models, and the brute force that knows everything about them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

from pearl.solving.backend import objective_value, violation
from pearl.solving.ir import Model, Objective, Point, Row, Variable, canonical


def random_model(random: Random) -> Model:
    """Two to five variables with at most six values each, one to five rows of every kind, three objectives.

    About one in four is infeasible.
    """
    variables = tuple(_variable(random, index) for index in range(random.randint(2, 5)))
    rows = tuple(_row(random, index, variables) for index in range(random.randint(1, 5)))
    objectives = tuple(_objective(random, index, len(variables)) for index in range(3))
    return Model(variables=variables, rows=rows, objectives=objectives)


def feasible_points(model: Model) -> list[Point]:
    """Every point of a small model, in lexicographic order."""
    ranges = [range(v.low, v.high + 1) for v in model.variables]
    return [point for point in itertools.product(*ranges) if not violation(model, point)]


def tier_values(objectives: Sequence[Objective], points: Sequence[Point]) -> tuple[int, ...]:
    """Lexicographic optimum over `points`: each objective held at its best before the next."""
    return min(tuple(objective_value(objective, point) for objective in objectives) for point in points)


def _variable(random: Random, index: int) -> Variable:
    low = random.randint(-4, 3)
    return Variable(name=f"x{index}", low=low, high=low + random.choice((0, 1, 1, 3, 5)))


def _row(random: Random, index: int, variables: tuple[Variable, ...]) -> Row:
    """A row around a random point of the box: equality, range, one-sided, or free."""
    terms = canonical(
        (column, random.randint(-5, 5))
        for column in random.sample(range(len(variables)), random.randint(1, len(variables)))
    )
    activity = sum(c * random.randint(variables[column].low, variables[column].high) for column, c in terms)
    low, high = random.choice(
        (
            (activity, activity),
            (activity - 2, activity + 3),
            (activity, None),
            (None, activity),
            (None, activity + 4),
            (None, None),
        )
    )
    return Row(name=f"r{index}", terms=terms, low=low, high=high)


def _objective(random: Random, index: int, columns: int) -> Objective:
    terms = canonical((column, random.randint(-6, 9)) for column in range(columns))
    return Objective(name=f"tier{index}", terms=terms, constant=random.randint(-20, 20))
