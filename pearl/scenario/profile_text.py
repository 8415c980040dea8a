"""Writes an engine profile as the text of its own file, with units that people read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pearl.core.engine import EngineProfile, FitError, Saturation
from pearl.documents import parse_document, plain_scalar
from pearl.errors import Fault, InputError, ScenarioError
from pearl.scenario.checked import validate_filled
from pearl.scenario.engine_schema import ProfileDocument

_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))

_PLAIN = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")
"""What needs no quotes, unless it is a number or a boolean."""


def profile_text(profile: EngineProfile, *, description: str, derivation: Mapping[str, str]) -> str:
    """YAML of kind EngineProfile; reading it back gives `profile` to the digits that a fit keeps.

    Raises InputError where no profile file may say so: a name with spaces, more KV memory than any GPU has.
    """
    text = "\n".join([*_head(profile, description), *_spec(profile), *_derivation(derivation), ""])
    try:
        document = parse_document(text, file=profile.name, error=ScenarioError)
        validate_filled(ProfileDocument, document)
    except ScenarioError as e:
        message = f"no profile can be written of {profile.model!r} on {profile.gpu!r}: "
        raise InputError([Fault(message=f"{message}{fault.message}", hint=fault.hint) for fault in e.faults]) from None
    return text


def _head(profile: EngineProfile, description: str) -> Iterator[str]:
    yield "apiVersion: pearl.dev/v1alpha1"
    yield "kind: EngineProfile"
    yield "metadata:"
    yield f"  name: {plain(profile.name)}"
    yield f"  description: {_quoted(description)}"


def _spec(profile: EngineProfile) -> Iterator[str]:
    prefill, decode, transfer = profile.prefill, profile.decode, profile.transfer
    yield "spec:"
    yield f"  model: {_quoted(profile.model)}"
    yield f"  gpu: {plain(profile.gpu)}"
    yield f"  tensor_parallel: {profile.tensor_parallel}"
    yield f"  prefill: {{p0: {_time(prefill.p0_s)}, p1: {_time(prefill.p1_s)}, p2: {_time(prefill.p2_s)}}}"
    yield "  decode:"
    yield f"    c0: {_time(decode.c0_s)}"
    yield f"    c1: {_time(decode.c1_s)}"
    yield f"    c2: {_time(decode.c2_s)}"
    if decode.saturation:
        yield f"    saturation: {_saturation(decode.saturation)}"
    yield "  kv_transfer:"
    yield f"    latency: {_time(transfer.latency_s)}"
    yield f"    bandwidth: {transfer.bandwidth_bytes_per_s / 1e9:.6g} GB/s"
    yield f"    bytes_per_token: {transfer.bytes_per_token:.12g} B"
    yield f"  kv_decode_tokens: {profile.kv_decode_tokens}"
    yield f"  kv_colocated_tokens: {profile.kv_colocated_tokens}"
    yield f"  chunk_tokens: {profile.chunk_tokens}"
    yield f"  max_sequences: {profile.max_sequences}"
    yield f"  mixed_step_factor: {profile.mixed_step_factor:.6g}"
    if profile.fit:
        yield from _fit(profile.fit)


def _saturation(saturation: Saturation) -> str:
    experts = f", experts: {saturation.experts}, top_k: {saturation.top_k}" if saturation.experts else ""
    return f"{{form: {saturation.form}, amplitude: {_time(saturation.amplitude_s)}{experts}}}"


def _fit(fit: FitError) -> Iterator[str]:
    yield "  fit:"
    yield f"    prefill_mean: {fit.prefill_mean:.6g}"
    yield f"    prefill_max: {fit.prefill_max:.6g}"
    yield f"    decode_mean: {fit.decode_mean:.6g}"
    yield f"    decode_max: {fit.decode_max:.6g}"
    yield f"    points: {fit.points}"
    yield f"    source: {_quoted(fit.source)}"


def _derivation(derivation: Mapping[str, str]) -> Iterator[str]:
    if derivation:
        yield "derivation:"
        yield from (f"  {key}: {_quoted(text)}" for key, text in derivation.items())


def _time(seconds: float) -> str:
    """The time in the largest unit in which it is at least 1."""
    unit, size = next(((u, s) for u, s in _UNITS if seconds >= s), _UNITS[-1])
    return f"{seconds / size:.6g} {unit}"


def plain(text: str) -> str:
    """The text without quotes, where YAML reads it as the same text."""
    return text if _PLAIN.fullmatch(text) and plain_scalar(text) == text else _quoted(text)


def _quoted(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in '\\"':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
