"""The result of a calibration as a file: the values, how well they meet the targets, and what repeats them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pearl.documents import nearest, read_document
from pearl.errors import Fault, ScenarioError
from pearl.reproduce.calibration import Calibration, Finite
from pearl.reproduce.fit import Fit
from pearl.scenario.checked import validate_filled
from pearl.scenario.fields import Name, Spec, Whole


class FittedTarget(Spec):
    """How far one target was met."""

    name: Name
    target: Finite
    fitted: Finite
    tolerance: Finite
    loss: Finite
    """Squared error in tolerances."""


class FittedDocument(Spec):
    """A result file."""

    apiVersion: Literal["pearl.dev/v1alpha1"]  # noqa: N815 - the field's name in the document
    kind: Literal["CalibrationResult"]
    calibration: str
    command: str
    seed: Whole
    budget: Whole
    loss: Finite
    parameters: Mapping[Name, Finite]
    targets: tuple[FittedTarget, ...]


def fitted_data(fit: Fit) -> dict[str, Any]:
    """Plain data of the result file; its command works in the folder that this one was called in."""
    file = shlex.quote(fit.calibration.file)
    return {
        "apiVersion": "pearl.dev/v1alpha1",
        "kind": "CalibrationResult",
        "calibration": fit.calibration.name,
        "command": f"pearl calibrate {file} --budget {fit.budget} --seed {fit.seed}",
        "seed": fit.seed,
        "budget": fit.budget,
        "loss": round(fit.loss, 6),
        "parameters": dict(fit.parameters),
        "targets": [
            {
                "name": met.name,
                "target": met.target,
                "fitted": round(met.fitted, 6),
                "tolerance": met.tolerance,
                "loss": round(met.loss, 6),
            }
            for met in fit.targets
        ],
    }


def read_values(path: Path, calibration: Calibration) -> Mapping[str, float]:
    """The parameters in a result file; raises ScenarioError where they are not those of the calibration."""
    document = read_document(path, error=ScenarioError)
    values = validate_filled(FittedDocument, document).parameters
    wanted = calibration.spec.parameters
    faults = [
        Fault(
            message=f"{name!r} is no parameter of {calibration.file}",
            span=document.key_span(("parameters", name)),
            hint=nearest(name, wanted),
        )
        for name in values
        if name not in wanted
    ]
    faults += [
        Fault(message=f"parameter {name!r} is missing", span=document.key_span(("parameters",)))
        for name in wanted
        if name not in values
    ]
    if faults:
        raise ScenarioError(faults)
    return values
