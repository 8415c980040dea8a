"""Field types that the scenario and engine-profile schemas share: strict numbers, and quantities with their units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pearl.documents import Part
from pearl.scenario.units import BASE_UNITS, EXAMPLES, UNITS, Dimension, parse_any_quantity, parse_quantity

MAX_QUANTITY = 1e15
"""Above any quantity of a cluster in base units (a petabyte; thirty million years): what exceeds it is a slip."""


class Spec(Part):
    """Base of every part of a scenario or profile: numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Annotation of a float field: text with a unit of `dimension`, held in base units, within [0, most]."""

    dimension: Dimension
    positive: bool = False
    """Whether 0 is refused."""
    most: float = MAX_QUANTITY

    def parse(self, value: object) -> float:
        """The number in base units; ValueError if it is no such quantity or out of range."""
        number = parse_quantity(value, self.dimension)
        if number < 0 or (self.positive and number == 0):
            raise ValueError(f"expected a {self.dimension} {'above' if self.positive else 'of at least'} 0")
        if number > self.most:
            raise ValueError(f"expected a {self.dimension} of at most {self.most:g}{BASE_UNITS[self.dimension]}")
        return number

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        share = self.dimension is Dimension.SHARE
        units = "|".join(UNITS[self.dimension])
        text = {"type": "string", "pattern": rf"^\s*[0-9.]+([eE][-+]?[0-9]+)?\s*({units}){'?' if share else ''}\s*$"}
        number = {"type": "number", "minimum": 0, "maximum": self.most}
        shape: JsonSchemaValue = {"anyOf": [number, text]} if share else text
        return {"title": self.dimension.value, "examples": list(EXAMPLES[self.dimension]), **shape}


Seconds = Annotated[float, Quantity(dimension=Dimension.TIME)]
PositiveBytes = Annotated[float, Quantity(dimension=Dimension.BYTES, positive=True)]
PositiveBandwidth = Annotated[float, Quantity(dimension=Dimension.BANDWIDTH, positive=True)]
UsdPerHour = Annotated[float, Quantity(dimension=Dimension.PRICE)]
Watts = Annotated[float, Quantity(dimension=Dimension.POWER)]
Share = Annotated[float, Quantity(dimension=Dimension.SHARE, most=1.0)]
AnyQuantity = Annotated[
    float,
    BeforeValidator(parse_any_quantity),
    WithJsonSchema({"type": ["string", "number"], "title": "number or quantity"}),
]

Flag = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, Field(strict=True)]
"""A whole number: text and booleans are refused. Fields add their own bounds."""
Number = Annotated[float, Field(strict=True, ge=0, le=MAX_QUANTITY)]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
WorkerId = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
