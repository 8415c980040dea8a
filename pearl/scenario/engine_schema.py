"""Schema of an engine profile, the same in a scenario and in a profile's own file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from pearl.core.engine import (
    DecodeCost,
    EngineProfile,
    FitError,
    KvTransfer,
    PrefillCost,
    Saturation,
    SaturationForm,
)
from pearl.scenario.fields import Name, Number, PositiveBandwidth, PositiveBytes, Seconds, Spec, Whole

MAX_KV_TOKENS = 10**10
"""Above the KV cache of any engine by orders of magnitude."""
REQUIRED = ("model", "gpu", "prefill", "decode", "kv_transfer", "kv_decode_tokens", "kv_colocated_tokens")
"""What a profile without a base must give."""
_FIELD = {"kv_transfer": "transfer"}
"""Names of the document that differ from the fact's."""


class PrefillSpec(Spec):
    """Time to prefill n tokens after c cached ones: p0 + p1·n + p2·(n² + 2·n·c)."""

    p0: Seconds
    """Fixed part."""
    p1: Seconds
    """Per new token: the linear layers."""
    p2: Seconds
    """Per pair of tokens that attend: attention."""

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.p0 + self.p1 <= 0:
            raise ValueError("prefill must take time; expected p0 or p1 above 0")
        return self

    def build(self) -> PrefillCost:
        """The cost model."""
        return PrefillCost(p0_s=self.p0, p1_s=self.p1, p2_s=self.p2)


class SaturationSpec(Spec):
    """Time that a mixture-of-experts decode step adds for the experts that its batch touches."""

    amplitude: Seconds
    """`experts`: with every expert touched; `sqrt`: at a batch of 1."""
    form: SaturationForm
    """`experts`: 1 - (1 - top_k/experts)^b, or `sqrt`: √b."""
    experts: Annotated[Whole, Field(ge=0, le=65_536)] = 0
    """Experts of a layer; only with form experts."""
    top_k: Annotated[Whole, Field(ge=0, le=65_536)] = 0
    """Experts that a token uses; only with form experts."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.form is SaturationForm.EXPERTS and not 0 < self.top_k <= self.experts:
            raise ValueError("form experts needs 1 ≤ top_k ≤ experts")
        return self

    def build(self) -> Saturation:
        """The saturating term."""
        return Saturation(amplitude_s=self.amplitude, form=self.form, experts=self.experts, top_k=self.top_k)


class DecodeSpec(Spec):
    """Time of a decode step of b sequences with C context tokens in all: c0 + c1·b + c2·C, plus saturation."""

    c0: Seconds
    """Fixed part: the weights are read once."""
    c1: Seconds
    """Per sequence."""
    c2: Seconds
    """Per context token, summed over the batch: the KV cache is read."""
    saturation: SaturationSpec | None = None
    """For mixtures of experts."""

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.c0 + self.c1 <= 0:
            raise ValueError("decoding must take time; expected c0 or c1 above 0")
        return self

    def build(self) -> DecodeCost:
        """The cost model."""
        saturation = self.saturation.build() if self.saturation else None
        return DecodeCost(c0_s=self.c0, c1_s=self.c1, c2_s=self.c2, saturation=saturation)


class KvTransferSpec(Spec):
    """Hand-over of a KV cache from a prefill to a decode worker."""

    latency: Seconds
    """Before the first byte."""
    bandwidth: PositiveBandwidth
    """Between two workers, one way."""
    bytes_per_token: PositiveBytes
    """2 (keys, values) × layers × KV heads × head size × bytes per value."""

    def build(self) -> KvTransfer:
        """The transfer model."""
        return KvTransfer(
            latency_s=self.latency, bandwidth_bytes_per_s=self.bandwidth, bytes_per_token=self.bytes_per_token
        )


class FitSpec(Spec):
    """Relative error of the fit over the table it was made from."""

    prefill_mean: Number
    """Mean, prefill."""
    prefill_max: Number
    """Maximum, prefill."""
    decode_mean: Number
    """Mean, decode."""
    decode_max: Number
    """Maximum, decode."""
    points: Annotated[Whole, Field(ge=1, le=10**9)]
    """Rows of the table."""
    source: str
    """The table."""

    def build(self) -> FitError:
        """The fit error."""
        return FitError(**self.model_dump())


class EngineSpec(Spec):
    """What one worker of a model on a GPU type can do: a base profile, what differs from it, or all of it."""

    profile: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """The base: a built-in profile's name, or the path of a profile file relative to this one."""
    name: Name | None = None
    """Name in reports; by default that of the base."""
    model: str | None = None
    """The model, such as `Qwen/Qwen3-8B`."""
    gpu: Name | None = None
    """GPU type, such as `H200`."""
    tensor_parallel: Annotated[Whole, Field(ge=1, le=64)] | None = None
    """GPUs of the worker that was measured; 1 by default."""
    prefill: PrefillSpec | None = None
    """Prefill step time."""
    decode: DecodeSpec | None = None
    """Decode step time."""
    kv_transfer: KvTransferSpec | None = None
    """KV transfer between workers."""
    kv_decode_tokens: Annotated[Whole, Field(ge=1, le=MAX_KV_TOKENS)] | None = None
    """KV capacity of a decode worker, H_max, in tokens."""
    kv_colocated_tokens: Annotated[Whole, Field(ge=1, le=MAX_KV_TOKENS)] | None = None
    """KV capacity of a colocated worker, H_colo, in tokens: activations of prefill take their share."""
    chunk_tokens: Annotated[Whole, Field(ge=1, le=10_000_000)] | None = None
    """Largest number of tokens in one step (vLLM's max_num_batched_tokens); 8192 by default."""
    max_sequences: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = None
    """Largest number of sequences in one step (vLLM's max_num_seqs); 256 by default."""
    mixed_step_factor: Annotated[float, Field(strict=True, gt=0, le=100)] | None = None
    """Time of a step that mixes prefill and decode, over the sum of the two alone; 1 by default."""
    fit: FitSpec | None = None
    """Error of the fit, where the step times were fitted."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, data: Any) -> Any:
        return {"profile": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.profile is None and (missing := [key for key in REQUIRED if getattr(self, key) is None]):
            raise ValueError(f"an engine without `profile` needs {', '.join(missing)} too")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        mapping = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(schema, handler))
        return {"anyOf": [{"type": "string"}, dict(mapping)]}

    def build(self, *, name: str, base: EngineProfile | None = None) -> EngineProfile:
        """The profile: `base`, where given, with every field that this part sets; `fit` falls with new step times."""
        given = ((key, _built(getattr(self, key))) for key in self.model_fields_set - {"profile", "name"})
        values: dict[str, Any] = {_FIELD.get(key, key): value for key, value in given if value is not None}
        if base is None:
            return EngineProfile(**{"name": self.name or name, "tensor_parallel": 1, **values})
        if not values:
            return replace(base, name=self.name or base.name)
        if values.keys() & {"prefill", "decode"}:
            values.setdefault("fit", None)
        return replace(base, name=self.name or f"{base.name}*", **values)


def _built(value: Any) -> Any:
    return value.build() if isinstance(value, (PrefillSpec, DecodeSpec, KvTransferSpec, FitSpec)) else value


class ProfileMetadata(Spec):
    """Name and remarks."""

    name: Name
    """Name of the profile."""
    description: str = ""
    """Where it comes from."""


class ProfileDocument(Spec):
    """An engine profile's own file."""

    apiVersion: Literal["pearl.dev/v1alpha1"]  # noqa: N815 - the field's name in the document
    """`pearl.dev/v1alpha1`."""
    kind: Literal["EngineProfile"]
    """`EngineProfile`."""
    metadata: ProfileMetadata
    """Name and remarks."""
    spec: EngineSpec
    """The profile in full."""
    derivation: Mapping[str, str] = Field(default_factory=dict)
    """How the KV capacity came about, for people."""
