"""Solvers by name: the built-in back ends, a class in a file or module, and plug-ins of other packages.

A back end is loaded when it is asked for, so that no solver library is imported before it is needed.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pearl.errors import SolverError, SolverUnavailableError, UnknownSolverError
from pearl.solving.loading import construct, load_file, load_module
from pearl.solving.protocol import Capabilities, Solver

ENTRY_POINT_GROUP = "pearl.solvers"
"""Group under which an installed package offers solver classes."""

OWN_SOLVER_HINT = "For your own, give path/to/file.py:Class or package.module:Class (docs/solvers.md)."


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A back end that comes with PEARL, before it is loaded."""

    id: str
    class_name: str
    library: str
    """Distribution that it needs."""
    module: str
    """Module of the library that it works with."""
    install: str
    option: str | None = None
    """Constructor keyword that takes what follows the colon in `id:option`."""
    variants: tuple[str, ...] = ()
    """Values of the option; empty with an option set: any value."""


RESEARCH = 'pip install "pearl[research]"'
PLAIN = "pip install pearl"

BUILT_IN: tuple[BuiltIn, ...] = (
    BuiltIn(id="cpsat", class_name="CpSat", library="ortools", module="ortools.sat.python.cp_model", install=PLAIN),
    BuiltIn(id="enumerate", class_name="Enumerate", library="numpy", module="numpy", install=PLAIN),
    BuiltIn(
        id="mathopt",
        class_name="MathOpt",
        library="ortools",
        module="ortools.math_opt.python.mathopt",
        install=PLAIN,
        option="backend",
        variants=("highs", "gscip", "cpsat"),
    ),
    BuiltIn(id="highs", class_name="Highs", library="highspy", module="highspy", install=RESEARCH),
    BuiltIn(id="scip", class_name="Scip", library="pyscipopt", module="pyscipopt", install=RESEARCH),
    BuiltIn(
        id="pyomo",
        class_name="Pyomo",
        library="pyomo",
        module="pyomo.environ",
        install=RESEARCH,
        option="solver",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverInfo:
    """One line of the catalogue."""

    id: str
    available: bool
    library: str
    version: str | None = None
    capabilities: Capabilities | None = None
    """None where the class itself cannot be loaded."""
    install: str = ""
    """How to get the library; empty where nothing is known."""
    problem: str = ""
    """Why it is not available."""


def resolve(spec: str) -> Solver:
    """The solver that `spec` names.

    `spec` is a built-in id (`highs`), one with an option (`mathopt:gscip`, `pyomo:gurobi`), the name of an entry point
    in the group `pearl.solvers`, `path/to/file.py:Class` or `package.module:Class`. Raises UnknownSolverError,
    SolverUnavailableError where the library is not installed, SolverError where the class is not a solver.
    """
    name, colon, rest = spec.rpartition(":")
    if not colon:
        name, rest = spec, ""
    if built_in := _built_in(name):
        solver = _load_built_in(built_in, rest if colon else None)
        return _usable(solver, built_in.install, module=built_in.module)
    if not colon and (point := _entry_point(spec)):
        return _usable(construct(_load_entry_point(point), _described(point)), "")
    if not (colon and name and rest.isidentifier()):
        raise _unknown(spec)
    make = load_file(Path(name), rest) if _is_path(name) else load_module(name, rest)
    return _usable(construct(make, spec), "")


def catalogue() -> tuple[SolverInfo, ...]:
    """Every built-in back end with its variants, then every entry point; no solver library is imported for it."""
    lines = [_built_in_info(built_in, option) for built_in in BUILT_IN for option in (None, *built_in.variants[1:])]
    return (*lines, *(_entry_point_info(point) for point in _entry_points()))


def known_ids() -> tuple[str, ...]:
    """Ids that `resolve` knows without a file or module."""
    variants = [f"{b.id}:{variant}" for b in BUILT_IN for variant in b.variants]
    return (*(b.id for b in BUILT_IN), *variants, *(point.name for point in _entry_points()))


def is_installed(spec: str) -> bool:
    """Whether `spec` names a built-in back end or an entry point: no file, and no module of the user's choice."""
    return _built_in(spec.partition(":")[0]) is not None or spec in {point.name for point in _entry_points()}


def _built_in(name: str) -> BuiltIn | None:
    return next((b for b in BUILT_IN if b.id == name), None)


def _load_built_in(built_in: BuiltIn, option: str | None) -> Solver:
    where = built_in.id if option is None else f"{built_in.id}:{option}"
    make = load_module(f"pearl.solvers.{built_in.id}", built_in.class_name)
    if option is None:
        return construct(make, where)
    if built_in.option is None:
        raise UnknownSolverError(f"solver {built_in.id!r} takes no option, got {option!r}")
    if not option or (built_in.variants and option not in built_in.variants):
        known = ", ".join(f"{built_in.id}:{variant}" for variant in built_in.variants) or f"{built_in.id}:NAME"
        raise UnknownSolverError(f"unknown option {option!r} of solver {built_in.id!r}; known: {known}")
    return construct(make, where, **{built_in.option: option})


def _usable(solver: Solver, install: str, *, module: str | None = None) -> Solver:
    """`solver`, once the library behind it is imported, so that no time limit pays for that, or known to be there."""
    try:
        solver.library_version()
        if module is not None:
            importlib.import_module(module)
    except ImportError as error:
        advice = f"; install it with: {install}" if install else ""
        raise SolverUnavailableError(
            f"solver {solver.id!r} needs a library that is not here: {error}{advice}"
        ) from error
    return solver


def _built_in_info(built_in: BuiltIn, option: str | None) -> SolverInfo:
    solver_id = built_in.id if option is None else f"{built_in.id}:{option}"
    try:
        solver = _load_built_in(built_in, option)
    except SolverError as error:
        return _missing(solver_id, built_in.library, built_in.install, str(error))
    return _info(solver, solver_id, built_in.library, built_in.install)


def _entry_point_info(point: metadata.EntryPoint) -> SolverInfo:
    library = point.dist.name if point.dist else point.module
    if _built_in(point.name):
        problem = f"the name {point.name!r} is taken by a built-in solver; use {point.value}"
        return _missing(point.value, library, "", problem)
    try:
        solver = construct(_load_entry_point(point), _described(point))
    except SolverError as error:
        return _missing(point.name, library, "", str(error))
    return _info(solver, point.name, library, "")


def _info(solver: Solver, solver_id: str, library: str, install: str) -> SolverInfo:
    try:
        version, problem = solver.library_version(), ""
    except ImportError as error:
        version, problem = None, str(error)
    return SolverInfo(
        id=solver_id,
        available=version is not None,
        library=library,
        version=version,
        capabilities=solver.capabilities,
        install=install,
        problem=problem,
    )


def _missing(solver_id: str, library: str, install: str, problem: str) -> SolverInfo:
    return SolverInfo(id=solver_id, available=False, library=library, install=install, problem=problem)


def _entry_points() -> tuple[metadata.EntryPoint, ...]:
    return tuple(sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)))


def _entry_point(name: str) -> metadata.EntryPoint | None:
    points = [point for point in _entry_points() if point.name == name]
    if len(points) > 1:
        offers = ", ".join(point.value for point in points)
        raise UnknownSolverError(f"several packages offer a solver {name!r}: {offers}; give one of these instead")
    return points[0] if points else None


def _load_entry_point(point: metadata.EntryPoint) -> Callable[[], object]:
    module, _, class_name = point.value.partition(":")
    return load_module(module.strip(), class_name.strip())


def _described(point: metadata.EntryPoint) -> str:
    return f"{point.name} ({point.value})"


def _is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name or "\\" in name


def _unknown(spec: str) -> UnknownSolverError:
    known = known_ids()
    if _is_path(spec):
        return UnknownSolverError(f"solver {spec!r} names a file without a class; give {spec}:Class")
    near = difflib.get_close_matches(spec, known, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return UnknownSolverError(f"unknown solver {spec!r}; known: {', '.join(known)}.{guess} {OWN_SOLVER_HINT}")
