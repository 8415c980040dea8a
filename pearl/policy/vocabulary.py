"""Every name that a policy may read: its kind, unit and meaning. The checker, the documentation and hints read this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pearl.core.cluster import Role, Zone
from pearl.policy.units import PLAIN, SECOND, TOKEN, TOKENS_PER_SECOND, USD, WATT, Unit


class Kind(StrEnum):
    """How a name may be used."""

    SCALAR = "scalar"
    """One number for the whole decision."""
    COUNT = "count"
    """Affine in the numbers of workers that the decision chooses."""
    MAKESPAN = "makespan"
    """The makespan of the configuration that the decision chooses."""
    TABLE = "table"
    """A number that depends on one count."""
    MAP = "map"
    """A number by key: `price['reserved']`."""
    FUNCTION = "function"
    """Written with arguments: `count(role=decode)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One name of the vocabulary."""

    name: str
    kind: Kind
    unit: Unit
    meaning: str
    keys: tuple[str, ...] = ()
    """Keys of a map, or keyword arguments of a function."""


def _terms(*terms: Term) -> dict[str, Term]:
    return {term.name: term for term in terms}


def _scalar(name: str, unit: Unit, meaning: str) -> Term:
    return Term(name=name, kind=Kind.SCALAR, unit=unit, meaning=meaning)


def _count(name: str, meaning: str) -> Term:
    return Term(name=name, kind=Kind.COUNT, unit=PLAIN, meaning=meaning)


def _table(name: str, unit: Unit, meaning: str) -> Term:
    return Term(name=name, kind=Kind.TABLE, unit=unit, meaning=meaning)


def _function(name: str, meaning: str, *keys: str) -> Term:
    return Term(name=name, kind=Kind.FUNCTION, unit=PLAIN, meaning=meaning, keys=keys)


VOCABULARY: Mapping[str, Term] = _terms(
    _scalar("B", PLAIN, "trajectories in the batch"),
    _scalar("K_seq", TOKEN, "expected context of a trajectory at its end"),
    _scalar("K_max", TOKEN, "limit on the context of a trajectory"),
    _scalar("H_max", TOKEN, "KV capacity of a decode worker"),
    _scalar("H_colo", TOKEN, "KV capacity of a colocated worker"),
    _scalar("prefill_rate", TOKENS_PER_SECOND, "tokens that one prefill worker prefills per second"),
    _scalar("workers", PLAIN, "workers that may serve: all but those that must leave"),
    _scalar("T_stay", SECOND, "predicted makespan of the surviving workers in today's roles"),
    _scalar("overlap_window", SECOND, "time for which overlap GPUs stay free"),
    _scalar("activate_cost", SECOND, "time to activate a borrowed worker"),
    _scalar("return_cost", SECOND, "time to return a borrowed worker"),
    _scalar("job_priority", PLAIN, "priority of the job; a larger number goes first"),
    _scalar("turns", PLAIN, "expected turns of a trajectory"),
    _scalar("environment_time", SECOND, "expected time of one tool call in the environment"),
    _count("N_P", "prefill workers"),
    _count("N_D", "decode workers"),
    _count("N_C", "colocated workers"),
    _count("role_changes", "serving workers that take another serving role"),
    _count("adds", "inactive workers that start to serve"),
    _count("removes", "serving workers that become inactive by choice, not because they must leave"),
    _count("borrowed", "overlap workers that serve"),
    _function("count", "workers with a role (any serving role if not given), zone and node", "role", "zone", "node"),
    _function(
        "exposure",
        "expected number of serving workers that are reclaimed within the horizon: the sum of their probabilities",
        "role",
        "zone",
        "node",
    ),
    Term(name="T", kind=Kind.MAKESPAN, unit=SECOND, meaning="predicted makespan of the chosen configuration"),
    _table("T_prefill", SECOND, "makespan that the prefill workers allow; colocated: that the colocated workers allow"),
    _table("T_decode", SECOND, "makespan that the decode workers allow; colocated: that the colocated workers allow"),
    _table("demand_rate", TOKENS_PER_SECOND, "prefill tokens per second that the decode workers' pace asks for"),
    Term(
        name="price",
        kind=Kind.MAP,
        unit=USD,
        meaning="price of one worker for one billing hour; the hour is left out of the unit, so price*time is usd*s",
        keys=tuple(Zone),
    ),
    Term(name="power", kind=Kind.MAP, unit=WATT, meaning="electrical power of a worker, by role", keys=tuple(Role)),
    Term(
        name="forecast",
        kind=Kind.MAP,
        unit=PLAIN,
        meaning="a forecast declared under `forecast:`, in the unit of its source",
    ),
)
"""The vocabulary, by name."""

SOURCES: Mapping[str, Term] = _terms(
    _scalar("overlap_window", SECOND, "how long training GPUs stayed free after earlier updates"),
    _scalar("spot_reclaims", PLAIN, "preemptible workers reclaimed within the horizon"),
    _scalar("spot_arrivals", PLAIN, "preemptible workers gained within the horizon"),
    _scalar("prefill_demand", TOKENS_PER_SECOND, "prompt tokens asked for per second, whole pool"),
    _scalar("decode_demand", TOKENS_PER_SECOND, "output tokens asked for per second, whole pool"),
    _scalar("trajectories_left", PLAIN, "trajectories of the batch not yet finished"),
    _scalar("trajectory_tokens", TOKEN, "context of finished trajectories"),
    _scalar("environment_time", SECOND, "time of one tool call"),
)
"""Forecast sources whose unit is known; another source is allowed if its forecast declares `unit:`."""

FUNCTIONS: Mapping[str, str] = {
    "max": "the largest of its arguments",
    "min": "the smallest of its arguments",
    "abs": "the magnitude of a constant",
    "count": VOCABULARY["count"].meaning,
    "exposure": VOCABULARY["exposure"].meaning,
}
"""Every function, and what it gives."""

CONSTANT_FUNCTIONS = ("max", "min", "abs")

MODE_WORDS = ("colocated", "disaggregated")
"""Words that a `when` may use besides constants."""

LOOP_VARIABLES = ("node", "zone")
"""What `foreach` may range over."""
