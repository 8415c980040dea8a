"""A tiny Qwen3 with random weights and a byte-level tokenizer, written locally: real engines without a download.

The embeddings are untied, because a tied model silently differs after its weights are reloaded on CPU. The files are
written by hand (numpy, no torch), so that making a model takes milliseconds and any process can do it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl.errors import Fault, UsageError

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, numpy.dtype[numpy.float32]]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_BYTES = 256
_HEAD_DIM = 64
"""The smallest that vLLM's attention on CPU takes."""
_WEIGHT_STD = 0.3
"""Large enough that greedy tokens depend on the whole context; at 0.02 they repeat one token."""
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """Shape of the model. Two models that differ in `seed` alone are two weight versions of one model."""

    seed: int = 0
    layers: int = 2
    hidden: int = 128
    vocabulary: int = 1024
    max_tokens: int = 4096

    def __post_init__(self) -> None:
        least = _BYTES + len(SPECIAL_TOKENS)
        if self.vocabulary < least or self.hidden < _HEAD_DIM or self.hidden % _HEAD_DIM or self.layers < 1:
            expected = f"vocabulary ≥ {least}, hidden a multiple of {_HEAD_DIM}, at least one layer"
            raise UsageError(Fault(message=f"tiny model: {self}", expected=expected))


def write_tiny_model(directory: Path, model: TinyModel | None = None) -> Path:
    """Write configuration, weights and tokenizer into `directory`, which may exist; returns it."""
    model = model or TinyModel()
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", _config(model))
    _write_json(directory / "generation_config.json", {"eos_token_id": _special_id("<|im_end|>")})
    _write_json(directory / "tokenizer.json", _tokenizer())
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(model))
    write_safetensors(directory / "model.safetensors", _weights(model))
    return directory


def write_safetensors(path: Path, tensors: Iterator[tuple[str, Array]]) -> None:
    """Write float32 tensors in the safetensors format: header length, JSON header, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data: list[bytes] = []
    offset = 0
    for name, tensor in tensors:
        raw = tensor.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(raw)]}
        data.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join([struct.pack("<Q", len(text)), text, *data]))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _special_id(token: str) -> int:
    return _BYTES + SPECIAL_TOKENS.index(token)


def _config(model: TinyModel) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": model.vocabulary,
        "hidden_size": model.hidden,
        "intermediate_size": 2 * model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": _query_heads(model),
        "num_key_value_heads": _kv_heads(model),
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": model.max_tokens,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "initializer_range": _WEIGHT_STD,
        "eos_token_id": _special_id("<|im_end|>"),
        "pad_token_id": _special_id("<|endoftext|>"),
        "torch_dtype": "float32",
    }


def _query_heads(model: TinyModel) -> int:
    return max(2, model.hidden // _HEAD_DIM)


def _kv_heads(model: TinyModel) -> int:
    return max(1, _query_heads(model) // 2)


def _weights(model: TinyModel) -> Iterator[tuple[str, Array]]:
    import numpy as np

    rng = np.random.default_rng(model.seed)

    def normal(*shape: int) -> Array:
        return (rng.standard_normal(shape) * _WEIGHT_STD).astype(np.float32)

    def ones(size: int) -> Array:
        return np.ones(size, dtype=np.float32)

    hidden, inner = model.hidden, 2 * model.hidden
    query, kv = _query_heads(model) * _HEAD_DIM, _kv_heads(model) * _HEAD_DIM
    yield "model.embed_tokens.weight", normal(model.vocabulary, hidden)
    for index in range(model.layers):
        layer = f"model.layers.{index}"
        yield f"{layer}.self_attn.q_proj.weight", normal(query, hidden)
        yield f"{layer}.self_attn.k_proj.weight", normal(kv, hidden)
        yield f"{layer}.self_attn.v_proj.weight", normal(kv, hidden)
        yield f"{layer}.self_attn.o_proj.weight", normal(hidden, query)
        yield f"{layer}.self_attn.q_norm.weight", ones(_HEAD_DIM)
        yield f"{layer}.self_attn.k_norm.weight", ones(_HEAD_DIM)
        yield f"{layer}.mlp.gate_proj.weight", normal(inner, hidden)
        yield f"{layer}.mlp.up_proj.weight", normal(inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", normal(hidden, inner)
        yield f"{layer}.input_layernorm.weight", ones(hidden)
        yield f"{layer}.post_attention_layernorm.weight", ones(hidden)
    yield "model.norm.weight", ones(hidden)
    yield "lm_head.weight", normal(model.vocabulary, hidden)


def _tokenizer() -> dict[str, Any]:
    """A byte-level BPE without merges: token i is byte i; special tokens follow, and the rest of the ids are unused."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": _special_id(t), "content": t, **special} for t in SPECIAL_TOKENS],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {_byte_symbol(b): b for b in range(_BYTES)}, "merges": []},
    }


def _byte_symbol(byte: int) -> str:
    """The printable character that byte-level BPE (GPT-2) writes for a byte: itself, or one from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in shown:
        return chr(byte)
    hidden = [b for b in range(_BYTES) if b not in shown]
    return chr(0x100 + hidden.index(byte))


def _tokenizer_config(model: TinyModel) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": _CHAT_TEMPLATE,
        "model_max_length": model.max_tokens,
    }
