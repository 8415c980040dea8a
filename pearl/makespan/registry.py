"""Predictors by name: the built-in ones, or a researcher's own as `path/to/file.py:Class` or `package.module:Class`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import cast

from pearl.errors import Fault, InputError
from pearl.makespan.protocol import Predictor

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "bubble": "pearl.makespan.bubble:Bubble",
        "network": "pearl.makespan.network:Network",
    }
)
"""Names of the built-in predictors, and where each is found."""


def predictor_names() -> tuple[str, ...]:
    """Names of the built-in predictors."""
    return tuple(BUILT_IN)


def get_predictor(name: str) -> Predictor:
    """The predictor called `name`, made without arguments; InputError if there is none or it does not fit."""
    place = BUILT_IN.get(name, name)
    where, separator, attribute = place.rpartition(":")
    if not (separator and where and attribute):
        raise InputError(_unknown(name))
    found = getattr(_module(where, name), attribute, None)
    if not isinstance(found, type):
        raise InputError(Fault(message=f"predictor {name!r}: no class {attribute!r} in {where}"))
    return _made(found, name)


def _made(kind: type, name: str) -> Predictor:
    missing = [part for part in ("id", "tables", "paths") if not hasattr(kind, part)]
    if missing:
        raise InputError(
            Fault(
                message=f"predictor {name!r} lacks {', '.join(missing)}",
                expected="a class with id, tables() and paths()",
                hint="see pearl/makespan/protocol.py",
            )
        )
    try:
        return cast(Predictor, kind())
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(Fault(message=f"predictor {name!r} cannot be made without arguments: {why}")) from error


def _module(where: str, name: str) -> ModuleType:
    try:
        return _module_from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except FileNotFoundError as error:
        raise InputError(Fault(message=f"predictor {name!r}: no file {where}")) from error
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(Fault(message=f"predictor {name!r} cannot be imported: {why}")) from error


def _module_from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(path)
    spec = importlib.util.spec_from_file_location(f"pearl_predictor_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses of the file look their own module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _unknown(name: str) -> Fault:
    nearest = difflib.get_close_matches(name, BUILT_IN, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return Fault(
        message=f"unknown predictor {name!r}",
        expected=f"one of {', '.join(BUILT_IN)}",
        hint=f"{hint}for your own, give path/to/file.py:Class or package.module:Class",
    )
