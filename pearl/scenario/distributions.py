"""Distributions as scenarios write them: a value, or a mapping with `dist`."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from pearl.core.distribution import Distribution, Family
from pearl.scenario.fields import Number, Seconds, Spec

MAX_CV = 10.0
"""Largest coefficient of variation: beyond it the clipped log-normal is a point mass at its limits."""

_FIELDS = {
    Family.CONSTANT: ({"value"}, set[str]()),
    Family.UNIFORM: ({"low", "high"}, set[str]()),
    Family.EXPONENTIAL: ({"mean"}, {"low", "high"}),
    Family.LOGNORMAL: ({"mean", "cv"}, {"low", "high"}),
    Family.EMPIRICAL: ({"values"}, {"low", "high"}),
}
"""Fields that each family needs, and those that it may have."""


def _scalar_to_constant(data: Any) -> Any:
    return data if isinstance(data, dict) else {"dist": "constant", "value": data}


class _DistributionSpec(Spec):
    """A non-negative quantity, given as one value or by its distribution."""

    dist: Family
    """`constant` (value), `uniform` (low, high), `exponential` (mean), `lognormal` (mean, cv), `empirical` (values)."""
    value: Any = None
    mean: Any = None
    cv: Annotated[float, Field(strict=True, ge=0, le=MAX_CV)] | None = None
    """Standard deviation over mean, before clipping."""
    low: Any = None
    high: Any = None
    values: Any = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed, allowed = _FIELDS[self.dist]
        given = self.model_fields_set - {"dist"}
        if missing := needed - given:
            raise ValueError(f"{self.dist} needs {_listed(needed)}; {_listed(missing)} missing")
        if surplus := given - needed - allowed:
            raise ValueError(f"{self.dist} takes {_listed(needed | allowed)}; {_listed(surplus)} has no meaning here")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("low must not exceed high")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        mapping = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(schema, handler))
        return {"anyOf": [mapping["properties"]["value"], dict(mapping)]}

    def given(self) -> list[float]:
        """Every location that the part names: constant, mean, limits, values."""
        named = (self.value, self.mean, self.low, self.high)
        return [number for number in named if number is not None] + list(self.values or ())

    def build(self, *, at_least: float = 0.0) -> Distribution:
        """The distribution in base units, clipped from below at `at_least`."""
        low = max(self.low or 0.0, at_least)
        return Distribution(
            family=self.dist,
            mean=self.value if self.dist is Family.CONSTANT else self.mean or 0.0,
            cv=self.cv or 0.0,
            low=low,
            high=float("inf") if self.high is None else max(self.high, low),
            values=tuple(sorted(self.values or ())),
        )


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


class NumberDistributionSpec(_DistributionSpec):
    """A count of turns or tokens: one number, or its distribution."""

    value: Number | None = None
    """The constant."""
    mean: Number | None = None
    """Mean before clipping."""
    low: Number | None = None
    """Smallest value: samples below are raised to it."""
    high: Number | None = None
    """Largest value: samples above are lowered to it."""
    values: Annotated[tuple[Number, ...], Field(min_length=1, max_length=100_000)] | None = None
    """Observations, equally likely."""


class SecondsDistributionSpec(_DistributionSpec):
    """A time: one quantity, or its distribution."""

    value: Seconds | None = None
    """The constant."""
    mean: Seconds | None = None
    """Mean before clipping."""
    low: Seconds | None = None
    """Smallest value: samples below are raised to it."""
    high: Seconds | None = None
    """Largest value: samples above are lowered to it."""
    values: Annotated[tuple[Seconds, ...], Field(min_length=1, max_length=100_000)] | None = None
    """Observations, equally likely."""


NumberDistribution = Annotated[NumberDistributionSpec, BeforeValidator(_scalar_to_constant)]
SecondsDistribution = Annotated[SecondsDistributionSpec, BeforeValidator(_scalar_to_constant)]
