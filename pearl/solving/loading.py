"""Loading of a solver class from a file or a module that the user names, and the check that it fits a protocol."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

from pearl.errors import SolverError, SolverUnavailableError, UnknownSolverError
from pearl.solving.protocol import Capabilities, ModelSolver, ProblemSolver, Solver

TEMPLATE = "solvers/template.py"
"""The documented template, named in every message about one's own solver."""


def load_file(path: Path, class_name: str) -> Callable[[], object]:
    """Class `class_name` of the Python file `path`; the file is run each time, under a name of its own.

    Raises UnknownSolverError where there is no such file or class, SolverError where the file itself fails.
    """
    if not path.is_file():
        raise UnknownSolverError(f"solver file {path} does not exist (relative paths start at {Path.cwd()})")
    name = f"pearl_user_solver_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownSolverError(f"solver file {path} is not a Python source file; expected a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look their module up while the file runs.
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _failed(str(path), error) from error
    return _member(module, class_name, str(path))


def load_module(module_name: str, class_name: str) -> Callable[[], object]:
    """Class `class_name` of an importable module.

    Raises UnknownSolverError where there is no such module or class, SolverError where importing it fails.
    """
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _failed(module_name, error) from error
        raise UnknownSolverError(
            f"no module {module_name!r}: it must be installed or on PYTHONPATH; for a file, give path/to/file.py:Class"
        ) from error
    except (Exception, SystemExit) as error:
        raise _failed(module_name, error) from error
    return _member(module, class_name, module_name)


def construct(make: Callable[..., object], where: str, **options: str) -> Solver:
    """Call `make`, and return what it made once that fits one of the two protocols.

    Raises SolverError naming what is missing, SolverUnavailableError where the library behind it is not there.
    """
    try:
        solver = make(**options)
    except ImportError as error:
        raise SolverUnavailableError(f"solver {where} cannot be used here: {error}") from error
    except SolverError:
        raise
    except (Exception, SystemExit) as error:
        raise SolverError(
            f"solver {where} could not be made: {type(error).__name__}: {error}; "
            "its constructor must work without arguments"
        ) from error
    return fitted(solver, where)


def fitted(candidate: object, where: str) -> Solver:
    """`candidate` as a solver; SolverError lists everything that keeps it from being one."""
    faults = [*_attribute_faults(candidate), *_method_faults(candidate)]
    if faults:
        raise SolverError(
            f"{where} is not a solver: {'; '.join(faults)}. {TEMPLATE} is a template; docs/solvers.md explains it."
        )
    assert isinstance(candidate, ModelSolver | ProblemSolver)
    return candidate


def _attribute_faults(candidate: object) -> list[str]:
    faults = []
    solver_id = getattr(candidate, "id", None)
    if not (isinstance(solver_id, str) and solver_id):
        faults.append("`id` must be a non-empty str")
    capabilities = getattr(candidate, "capabilities", None)
    if not isinstance(capabilities, Capabilities):
        faults.append("`capabilities` must be a pearl.solving.protocol.Capabilities")
    elif capabilities.reads != ("problem" if hasattr(candidate, "solve") else "model"):
        faults.append("`capabilities.reads` must be 'model' with a method minimize, 'problem' with a method solve")
    return faults


def _method_faults(candidate: object) -> list[str]:
    faults = []
    if not _accepts(candidate, "library_version"):
        faults.append("method `library_version()` is missing")
    minimizes = _accepts(candidate, "minimize", "model", "objective", limits=None, hint=None)
    if not minimizes and not _accepts(candidate, "solve", "problem", limits=None):
        faults.append("method `minimize(model, objective, *, limits, hint)` or `solve(problem, *, limits)` is missing")
    if hasattr(candidate, "minimize") and hasattr(candidate, "solve"):
        faults.append("it has both minimize and solve: offer one")
    return faults


def _accepts(candidate: object, method: str, *positional: object, **keywords: object) -> bool:
    """Whether `candidate` has a method that can be called with these arguments."""
    bound = getattr(candidate, method, None)
    if not callable(bound):
        return False
    try:
        inspect.signature(bound).bind(*positional, **keywords)
    except TypeError:
        return False
    except ValueError:  # A built-in without a signature: found out when it is called.
        return True
    return True


def _member(module: ModuleType, class_name: str, where: str) -> Callable[[], object]:
    member = getattr(module, class_name, None)
    if callable(member):
        return cast("Callable[[], object]", member)
    classes = [
        name for name, value in vars(module).items() if inspect.isclass(value) and hasattr(value, "capabilities")
    ]
    raise UnknownSolverError(
        f"{where} has no class {class_name!r}; solver classes there: {', '.join(classes) or 'none'}"
    )


def _failed(where: str, error: Exception | SystemExit) -> SolverError:
    """The error for solver code that fails while it is loaded, with the line of it that failed."""
    match error:
        case SyntaxError(filename=file, lineno=line) if file is not None and line is not None:
            place = f"{file}:{line}"
        case _:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{last.filename}:{last.lineno}"
    kind = SolverUnavailableError if isinstance(error, ImportError) else SolverError
    return kind(f"{place}: loading the solver {where} failed: {type(error).__name__}: {error}")
