"""A trainer's model and optimizer leave the device and come back, while the process lives on.

Tensors keep their identity: parameters, buffers, gradients and optimizer state are the same objects before and after,
so that optimizers, hooks and references stay valid. Whole storages move, hence tied tensors and views stay tied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl.errors import Fault, UsageError

if TYPE_CHECKING:
    import torch


@dataclass(slots=True, kw_only=True)
class Offloaded:
    """What left the device, and how it comes back."""

    bytes: int
    """Device memory that was given back."""
    _moved: list[_Moved] = field(default_factory=list, repr=False)

    def restore(self) -> int:
        """Bring everything back to where it was; returns the bytes. All or nothing, and idempotent.

        Raises torch's out-of-memory error where the device has no room; all is then still on the host.
        """
        moved, back = self._moved, sum(int(part.storage.nbytes()) for part in self._moved)
        _rebind(moved, [_copy(part.storage, part.device, pinned=False) for part in moved])
        self._moved = []
        return back


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """Tensors that share one storage, which is on the host, and the device it came from."""

    tensors: tuple[torch.Tensor, ...]
    storage: torch.UntypedStorage
    device: torch.device


def offload(
    module: torch.nn.Module | Iterable[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
) -> Offloaded:
    """Move parameters, buffers, gradients and optimizer state to host memory, pinned where the device is CUDA.

    What is on the host already stays as it is, so that a second call moves nothing. All or nothing: where the host has
    no room, torch's error is raised and everything is still on the device. Raises `UsageError` for tensors whose data
    is elsewhere (DTensor, meta): their own library must move those.
    """
    import torch

    modules = (module,) if isinstance(module, torch.nn.Module) else tuple(module)
    optimizers = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else tuple(optimizer)
    return _offload(_tensors(modules, optimizers), away=lambda tensor: tensor.device.type != "cpu")


def _offload(tensors: Iterable[torch.Tensor], *, away: Callable[[torch.Tensor], bool]) -> Offloaded:
    import torch

    groups = _by_storage(tensor for tensor in tensors if away(tensor))
    here = [
        _Moved(tensors=group, storage=group[0].untyped_storage(), device=group[0].device) for group in groups.values()
    ]
    host = torch.device("cpu")
    storages = [_copy(part.storage, host, pinned=part.device.type == "cuda") for part in here]
    _rebind(here, storages)
    moved = [
        _Moved(tensors=part.tensors, storage=storage, device=part.device)
        for part, storage in zip(here, storages, strict=True)
    ]
    freed = sum(storage.nbytes() for storage in storages)
    here.clear()  # the last references to the device's storages, or the cache could not give them back
    _give_back({part.device for part in moved})
    return Offloaded(bytes=freed, _moved=moved)


def _tensors(modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    for module in modules:
        for parameter in module.parameters():
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        yield from module.buffers()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield parameter
                if parameter.grad is not None:
                    yield parameter.grad
        yield from _within(optimizer.state)


def _within(value: Any) -> Iterator[torch.Tensor]:
    import torch

    match value:
        case torch.Tensor():
            yield value
        case Mapping():
            for item in value.values():
                yield from _within(item)
        case list() | tuple():
            for item in value:
                yield from _within(item)


def _by_storage(tensors: Iterable[torch.Tensor]) -> dict[tuple[torch.device, int], tuple[torch.Tensor, ...]]:
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    groups: dict[tuple[torch.device, int], dict[int, torch.Tensor]] = {}
    for tensor in tensors:
        if is_traceable_wrapper_subclass(tensor) or tensor.layout != torch.strided or tensor.device.type == "meta":
            hint = "a sharding library moves its own tensors: use its CPU offload"
            what = f"a {type(tensor).__name__} on {tensor.device}, {tensor.layout}"
            raise UsageError(Fault(message=f"offload: {what}", expected="plain dense tensors", hint=hint))
        key = (tensor.device, tensor.untyped_storage().data_ptr() or id(tensor))
        groups.setdefault(key, {})[id(tensor)] = tensor
    return {key: tuple(group.values()) for key, group in groups.items()}


def _copy(storage: torch.UntypedStorage, device: torch.device, *, pinned: bool) -> torch.UntypedStorage:
    import torch

    target = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device, pin_memory=pinned)
    target.copy_(_raw(storage), non_blocking=True)
    return target.untyped_storage()


def _raw(storage: torch.UntypedStorage) -> torch.Tensor:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))


def _rebind(parts: Iterable[_Moved], storages: Iterable[torch.UntypedStorage]) -> None:
    """Let tensors use the copies, once these are complete. Nothing here can fail for want of memory."""
    import torch

    pairs = list(zip(parts, storages, strict=True))
    _complete({part.device for part, _ in pairs})
    with torch.no_grad():
        for part, storage in pairs:
            for tensor in part.tensors:
                view = torch.empty(0, dtype=tensor.dtype, device=storage.device)
                tensor.data = view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _complete(devices: Iterable[torch.device]) -> None:
    import torch

    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _give_back(devices: Iterable[torch.device]) -> None:
    import torch

    for device in devices:
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.empty_cache()
