"""Methods that vLLM adds to its worker class; it loads this module, by name, inside the engine's own processes."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from typing import Any

_MADV_DONTNEED = 4


class PearlExtension:
    """Mixed into vLLM's worker. Names begin with `pearl_`, since the two share one namespace."""

    model_runner: Any

    def pearl_release_kept(self) -> int:
        """End the leases on all KV caches kept for others; returns how many."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return int(get_kv_transfer_group().release_kept())

    def pearl_register_anew(self, engine_id: str) -> tuple[int, int, str]:
        """Register the KV cache's memory under a new id; returns pipeline rank, tensor rank, and the payload in hex."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        payload: bytes = get_kv_transfer_group().register_anew(engine_id)
        return get_pp_group().rank_in_group, get_tp_group().rank_in_group, payload.hex()

    def pearl_device_bytes(self) -> int:
        """Memory in use on this worker's GPU."""
        import torch

        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    def pearl_drop_kv_pages(self) -> int:
        """Give the pages of the KV cache back to the system; returns the bytes. Content is lost, addresses stay."""
        return sum(drop_pages(address, size) for address, size in _storages(self.model_runner.kv_caches).items())


def _storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Address and size of each distinct storage: layers may share one."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def drop_pages(address: int, size: int) -> int:
    """MADV_DONTNEED on the whole pages within `size` bytes from `address`; returns the bytes given back."""
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if end <= start:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED) != 0:
        raise OSError(ctypes.get_errno(), "madvise failed")
    return end - start
