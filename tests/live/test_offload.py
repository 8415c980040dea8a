from __future__ import annotations

from typing import Any

import pytest

from pearl.errors import UsageError

torch = pytest.importorskip("torch", reason="needs torch (the live extra)")

from pearl.live.offload import _offload, _tensors, offload  # noqa: E402  # after the check that torch is here


def _trained() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
    model[2].weight = torch.nn.Parameter(model[0].weight.t())  # a view: both must stay one memory
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    _step(model, optimizer)
    return model, optimizer


def _step(model: Any, optimizer: Any) -> None:
    loss = model(torch.arange(24.0).reshape(6, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _values(model: Any, optimizer: Any) -> list[Any]:
    return [tensor.detach().clone() for tensor in _tensors([model], [optimizer])]


def test_on_the_host_there_is_nothing_to_move() -> None:
    model, optimizer = _trained()
    before = [tensor.data_ptr() for tensor in _tensors([model], [optimizer])]
    away = offload(model, optimizer)
    assert away.bytes == 0
    assert away.restore() == 0
    assert [tensor.data_ptr() for tensor in _tensors([model], [optimizer])] == before


def test_tensors_move_and_keep_identity_values_ties_and_strides() -> None:
    """Host to host, as if it were a device: what differs on CUDA is the kind of memory."""
    model, optimizer = _trained()
    tensors = list(_tensors([model], [optimizer]))
    ids, values = [id(tensor) for tensor in tensors], _values(model, optimizer)
    pointers, strides = {tensor.data_ptr() for tensor in tensors}, [tensor.stride() for tensor in tensors]
    away = _offload(tensors, away=lambda _: True)
    assert away.bytes >= sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
    now = list(_tensors([model], [optimizer]))
    assert [id(tensor) for tensor in now] == ids
    assert [tensor.stride() for tensor in now] == strides
    assert all(torch.equal(a, b) for a, b in zip(now, values, strict=True))
    assert pointers.isdisjoint(tensor.data_ptr() for tensor in now)
    assert model[0].weight.data_ptr() == model[2].weight.data_ptr()
    assert away.restore() == away.bytes
    assert away.restore() == 0
    assert all(torch.equal(a, b) for a, b in zip(_tensors([model], [optimizer]), values, strict=True))


def test_training_goes_on_as_if_nothing_had_moved() -> None:
    moved, unmoved = _trained(), _trained()
    for _ in range(3):
        away = _offload(_tensors([moved[0]], [moved[1]]), away=lambda _: True)
        away.restore()
        _step(*moved)
        _step(*unmoved)
    assert all(torch.equal(a, b) for a, b in zip(_values(*moved), _values(*unmoved), strict=True))


def test_where_memory_runs_out_nothing_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    import pearl.live.offload as module

    model, optimizer = _trained()
    pointers = [tensor.data_ptr() for tensor in _tensors([model], [optimizer])]
    copy, copies = module._copy, 0

    def full(*args: Any, **options: Any) -> Any:
        nonlocal copies
        copies += 1
        if copies == 3:
            raise MemoryError("the host is full")
        return copy(*args, **options)

    monkeypatch.setattr(module, "_copy", full)
    with pytest.raises(MemoryError):
        _offload(_tensors([model], [optimizer]), away=lambda _: True)
    assert [tensor.data_ptr() for tensor in _tensors([model], [optimizer])] == pointers


def test_what_cannot_be_moved_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a Parameter on meta.*expected plain dense tensors"):
        offload(torch.nn.Linear(2, 2, device="meta"))
    model = torch.nn.Module()
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    with pytest.raises(UsageError, match="sparse"):
        _offload(_tensors([model], []), away=lambda _: True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_gets_its_memory_back() -> None:
    model = torch.nn.Linear(4096, 4096, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4096, device="cuda")).sum().backward()
    optimizer.step()
    held, values = torch.cuda.memory_reserved(), _values(model, optimizer)
    away = offload(model, optimizer)
    assert held - torch.cuda.memory_reserved() >= 0.8 * away.bytes
    assert model.weight.is_pinned()
    away.restore()
    assert model.weight.is_cuda
    assert all(torch.equal(a, b) for a, b in zip(_values(model, optimizer), values, strict=True))
