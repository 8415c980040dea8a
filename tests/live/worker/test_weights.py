"""The store of weight versions: complete or absent, never changed, never outside of its root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pearl.errors import UsageError
from pearl.live.tiny_model import TinyModel, write_tiny_model
from pearl.live.weights import WeightRef, WeightStore


def publish(store: WeightStore, *versions: int) -> None:
    for version in versions:
        with store.publish(version) as directory:
            write_tiny_model(directory, TinyModel(seed=version, layers=1))


def test_versions_appear_complete_and_in_order(tmp_path: Path) -> None:
    store = WeightStore(root=tmp_path / "store")
    assert store.versions() == ()
    assert store.latest() is None
    publish(store, 2, 10, 9)
    assert store.versions() == (2, 9, 10)
    latest = store.latest()
    assert latest is not None
    assert (latest.version, latest.directory.name) == (10, "v00000010")
    assert (latest.directory / "model.safetensors").is_file()


def break_off(store: WeightStore, error: Exception | None) -> None:
    with store.publish(1) as directory:
        (directory / "config.json").write_text("{}")
        if error:
            raise error


def test_a_snapshot_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = WeightStore(root=tmp_path)
    with pytest.raises(RuntimeError, match="disk"):
        break_off(store, RuntimeError("disk"))
    with pytest.raises(UsageError, match="no complete snapshot"):
        break_off(store, None)
    assert list(tmp_path.iterdir()) == []


def test_a_version_never_changes(tmp_path: Path) -> None:
    store = WeightStore(root=tmp_path)
    publish(store, 1)
    with pytest.raises(UsageError, match="weights 1 exist"):
        publish(store, 1)


def test_nothing_outside_of_the_root_is_read(tmp_path: Path) -> None:
    store = WeightStore(root=tmp_path / "store")
    outside = write_tiny_model(tmp_path / "outside", TinyModel(layers=1))
    store.root.mkdir()
    (store.root / "v00000003").symlink_to(outside)
    for directory in (outside, store.root / ".." / "outside", store.root / "v00000003"):
        with pytest.raises(UsageError, match="outside of the weight store"):
            store.check(WeightRef(version=3, directory=directory))


def test_tied_models_and_broken_configurations_are_refused(tmp_path: Path) -> None:
    store = WeightStore(root=tmp_path)
    publish(store, 1)
    config = store.get(1).directory / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": True}))
    with pytest.raises(UsageError, match="ties its embeddings"):
        store.get(1)
    config.write_text("{")
    with pytest.raises(UsageError, match=r"config\.json"):
        store.get(1)


def test_old_versions_go(tmp_path: Path) -> None:
    store = WeightStore(root=tmp_path)
    publish(store, 1, 2, 3, 4)
    assert store.drop_older(2, keep=1) == (1,)
    assert store.drop_older(4, keep=2) == (2,), "the newest two stay, whoever needs them"
    assert store.versions() == (3, 4)
    with pytest.raises(UsageError, match="no complete snapshot"):
        store.get(1)
    with pytest.raises(UsageError, match="at least 0"):
        store.get(-1)
