"""Which of vLLM's engine arguments a cluster file may give.

A list of what is allowed, and not of what is forbidden: a newer vLLM may bring arguments that run code from the model's
directory or open a port.
"""

from __future__ import annotations

from pearl.documents import nearest

ALLOWED = frozenset(
    {
        "async_scheduling",
        "attention_backend",
        "block_size",
        "calculate_kv_scales",
        "disable_cascade_attn",
        "disable_custom_all_reduce",
        "dtype",
        "enable_chunked_prefill",
        "enable_dbo",
        "enable_eplb",
        "enable_expert_parallel",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "long_prefill_token_threshold",
        "max_long_partial_prefills",
        "max_num_partial_prefills",
        "max_parallel_loading_workers",
        "num_gpu_blocks_override",
        "prefix_caching_hash_algo",
        "quantization",
        "seed",
        "swap_space",
    }
)
"""None of them runs code that a file names, reaches the network, or is set by PEARL."""

_INSTEAD = {
    "kv_cache_memory_bytes": "kv_cache",
    "max_model_len": "max_model_tokens",
    "max_num_batched_tokens": "max_batched_tokens",
    "max_num_seqs": "max_sequences",
    "tensor_parallel_size": "tensor_parallel",
}


def check_argument(name: str) -> None:
    """Raise ValueError unless a cluster file may give this engine argument."""
    if name in ALLOWED:
        return
    if name in _INSTEAD:
        raise ValueError(f"argument {name!r} has a field of its own; expected engine.{_INSTEAD[name]}")
    hint = nearest(name, ALLOWED)
    raise ValueError(f"argument {name!r} is not on the list of those allowed" + (f"; {hint}" if hint else ""))
