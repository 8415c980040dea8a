"""The calibrated models: a calibration file each, and the values that a search found for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pearl.errors import UsageError
from pearl.reproduce.calibration import Calibration, World, load_calibration
from pearl.reproduce.fitted import read_values

FOLDER = Path(__file__).parent
CALIBRATED = FOLDER.parent / "calibrated"


def model_names() -> tuple[str, ...]:
    """Models that were calibrated."""
    return tuple(sorted(path.name.removesuffix(".calibration.yaml") for path in FOLDER.glob("*.calibration.yaml")))


def calibration_of(name: str) -> Calibration:
    """The calibration file of a model."""
    if name not in model_names():
        raise UsageError(f"no calibrated model {name!r}; known: {', '.join(model_names())}")
    return load_calibration(FOLDER / f"{name}.calibration.yaml")


@cache
def load_model(name: str) -> World:
    """A model's workload and engine with the fitted values in place."""
    calibration = calibration_of(name)
    return calibration.world(read_values(CALIBRATED / f"{name}.yaml", calibration))
