"""From a table of step times to profile files: names, model shapes and GPU memory resolved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pearl.core.engine import EngineProfile
from pearl.documents import nearest
from pearl.errors import Fault, UsageError
from pearl.files import write_whole
from pearl.scenario.fields import Quantity
from pearl.scenario.fit import (
    CHUNK_TOKENS,
    GIB,
    GPU_MEMORY_BYTES,
    MEMORY_SHARE,
    MODELS,
    ModelShape,
    fit_memory,
    fit_profile,
)
from pearl.scenario.profile_text import profile_text
from pearl.scenario.step_times import StepTimes, read_step_times
from pearl.scenario.units import Dimension

_GPU = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHAPE_PART = re.compile("[1-9][0-9]{0,4}")


@dataclass(frozen=True, kw_only=True)
class FittedProfile:
    """A profile, and how its KV capacity came about."""

    profile: EngineProfile
    derivation: dict[str, str]


def fit_table(
    path: Path, *, gpu: str, gpu_memory: str | None = None, models: Sequence[str] = (), shape: str | None = None
) -> list[FittedProfile]:
    """Profiles of the table's models (or of `models`), each of which a file may hold.

    Raises InputError for a table that is none, UsageError where an argument does not fit.
    """
    if not _GPU.fullmatch(gpu):
        raise UsageError(
            Fault(message=f"--gpu {gpu!r}", expected="a name such as H200: letters, digits, '.', '_', '-'")
        )
    tables = read_step_times(path)
    for model in models:
        if model not in tables:
            raise UsageError(Fault(message=f"--model {model!r} is not in {path}", hint=nearest(model, tables)))
    memory_bytes = _memory(gpu, gpu_memory)
    wanted = {profile_name(model, gpu): model for model in models or tables}
    for model in models or tables:
        if (other := wanted[profile_name(model, gpu)]) != model:
            message = f"{model!r} and {other!r} would both be profile {profile_name(model, gpu)!r}"
            raise UsageError(Fault(message=message, hint="fit one at a time, with --model"))
    fits = [_fit(tables[model], gpu, memory_bytes, _shape(model, shape)) for model in wanted.values()]
    for item in fits:
        _text(item)
    return fits


def write_profile(item: FittedProfile, folder: Path) -> Path:
    """Write the profile's file, whole or not at all, and return its path; raises InputError where it cannot be."""
    path = folder / f"{item.profile.name}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(Fault(message=f"cannot write to {folder}: {e.strerror or e}", hint="check --out")) from None
    write_whole(path, _text(item))
    return path


def _text(item: FittedProfile) -> str:
    source = item.profile.fit.source if item.profile.fit else "step times"
    description = f"{item.profile.model} on one {item.profile.gpu}, fitted to {source} by pearl profile fit"
    return profile_text(item.profile, description=description, derivation=item.derivation)


def profile_name(model: str, gpu: str) -> str:
    """`Qwen/Qwen3-8B` on `H200` is `qwen3-8b-h200`."""
    return f"{model.rsplit('/', 1)[-1]}-{gpu}".lower()


def _fit(table: StepTimes, gpu: str, memory_bytes: float, shape: ModelShape) -> FittedProfile:
    profile = fit_profile(table, name=profile_name(table.model, gpu), gpu=gpu, shape=shape, memory_bytes=memory_bytes)
    use = fit_memory(table, shape)
    chunk = use.activation_bytes_per_token * CHUNK_TOKENS
    derivation = {
        "gpu_memory": f"{memory_bytes / GIB:.2f} GiB, of which {MEMORY_SHARE:.0%} is used",
        "weights_and_workspace": f"{use.fixed_bytes / GIB:.2f} GiB: the table's memory at no context",
        "prefill_activations": f"{chunk / GIB:.2f} GiB for a chunk of {CHUNK_TOKENS} tokens, on colocated workers",
        "kv_bytes_per_token": f"{shape.kv_bytes_per_token} B = 2 x {shape.layers} layers x {shape.kv_heads} KV heads"
        f" x {shape.head_size} x {shape.value_bytes} B",
    }
    return FittedProfile(profile=profile, derivation=derivation)


def _memory(gpu: str, given: str | None) -> float:
    if given is not None:
        try:
            return Quantity(dimension=Dimension.BYTES, positive=True).parse(given)
        except ValueError as e:
            raise UsageError(Fault(message=f"--gpu-memory {given!r}: {e}")) from None
    if gpu not in GPU_MEMORY_BYTES:
        hint = f"known: {', '.join(GPU_MEMORY_BYTES)}; for another give --gpu-memory"
        raise UsageError(Fault(message=f"the memory of GPU {gpu!r} is not known", hint=hint))
    return GPU_MEMORY_BYTES[gpu]


def _shape(model: str, given: str | None) -> ModelShape:
    if given is None:
        if model not in MODELS:
            hint = f"known: {', '.join(MODELS)}; for another give --shape"
            raise UsageError(Fault(message=f"the shape of model {model!r} is not known", hint=hint))
        return MODELS[model]
    parts = given.split(",")
    if len(parts) not in (3, 5) or not all(map(_SHAPE_PART.fullmatch, parts)):
        expected = "LAYERS,KV_HEADS,HEAD_SIZE[,EXPERTS,TOP_K], whole numbers from 1 to 99999"
        raise UsageError(Fault(message=f"--shape {given[:80]!r}", expected=expected))
    layers, kv_heads, head_size, *moe = map(int, parts)
    experts, top_k = moe or (0, 0)
    if top_k > experts:
        raise UsageError(Fault(message=f"--shape {given!r}: TOP_K {top_k} exceeds EXPERTS {experts}"))
    return ModelShape(layers=layers, kv_heads=kv_heads, head_size=head_size, experts=experts, top_k=top_k)
