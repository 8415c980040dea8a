"""Engine profiles: the built-in ones by name, and files of one's own."""

from __future__ import annotations

from pathlib import Path

from pearl.core.engine import EngineProfile
from pearl.documents import nearest, read_document
from pearl.errors import Fault, ScenarioError
from pearl.scenario.checked import validate_filled
from pearl.scenario.engine_schema import ProfileDocument

PROFILES = Path(__file__).parent / "profiles"
"""Folder of the built-in profiles, one file each."""


def builtin_profiles() -> dict[str, Path]:
    """Files of the built-in profiles by name."""
    return {path.stem: path for path in sorted(PROFILES.glob("*.yaml"))}


def load_profile(name: str, *, relative_to: Path = Path()) -> EngineProfile:
    """A built-in profile by name, or the profile of a file; raises ScenarioError."""
    return read_profile(locate_profile(name, relative_to=relative_to))


def locate_profile(name: str, *, relative_to: Path = Path()) -> Path:
    """The file of a built-in profile, or the path itself; raises ScenarioError for an unknown name."""
    if is_path(name):
        return relative_to / name
    known = builtin_profiles()
    if name not in known:
        raise ScenarioError(Fault(message=f"unknown engine profile {name!r}", hint=nearest(name, known)))
    return known[name]


def read_profile(path: Path) -> EngineProfile:
    """The profile in a file of kind EngineProfile; raises ScenarioError with every fault."""
    document = read_document(path, error=ScenarioError)
    parsed = validate_filled(ProfileDocument, document)
    if parsed.spec.profile is not None:
        span = document.span(("spec", "profile"))
        raise ScenarioError(Fault(message="a profile's own file stands alone", span=span, hint="give every field"))
    return parsed.spec.build(name=parsed.metadata.name)


def is_path(name: str) -> bool:
    """Whether a reference names a file rather than something built in."""
    return "/" in name or "\\" in name or name.endswith((".yaml", ".yml", ".json"))
