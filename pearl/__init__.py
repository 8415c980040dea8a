"""PEARL: a declarative, policy-driven scheduler of prefill and decode for agentic-RL rollout.

`import pearl` costs nothing heavy: `pearl.solve` and the types beside it are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pearl.api import Result, solve
    from pearl.policy.load import load_policy
    from pearl.scenario.load import load_scenario

__all__ = ["Result", "load_policy", "load_scenario", "solve"]

_HOMES = {
    "Result": "pearl.api",
    "load_policy": "pearl.policy.load",
    "load_scenario": "pearl.scenario.load",
    "solve": "pearl.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pearl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
