"""The tiny model's files, read back by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pearl.errors import UsageError
from pearl.live.tiny_model import TinyModel, write_tiny_model


def read(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def test_the_weights_are_a_whole_safetensors_file_of_an_untied_model(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m", TinyModel(layers=3))
    header, data = read(directory / "model.safetensors")
    assert header.pop("__metadata__") == {"format": "pt"}
    end = 0
    for entry in header.values():
        size = 4
        for extent in entry["shape"]:
            size *= extent
        assert entry["data_offsets"] == [end, end + size]
        end += size
    assert end == len(data)
    assert header["lm_head.weight"]["shape"] == header["model.embed_tokens.weight"]["shape"] == [1024, 128]
    assert sum("q_proj" in name for name in header) == 3
    assert json.loads((directory / "config.json").read_text())["tie_word_embeddings"] is False


def test_a_seed_is_a_weight_version_of_the_same_model(tmp_path: Path) -> None:
    first, again, other = (
        write_tiny_model(tmp_path / name, TinyModel(seed=seed)) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert read(first / "model.safetensors") == read(again / "model.safetensors")
    assert read(first / "model.safetensors")[0] == read(other / "model.safetensors")[0]
    assert read(first / "model.safetensors")[1] != read(other / "model.safetensors")[1]
    assert (first / "config.json").read_bytes() == (other / "config.json").read_bytes()


def test_every_byte_has_a_token_of_its_own(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path)
    vocabulary = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert (vocabulary["A"], vocabulary["Ġ"], vocabulary["Ċ"]) == (65, 32, 10)


@pytest.mark.parametrize("shape", [{"vocabulary": 100}, {"hidden": 100}, {"layers": 0}])
def test_shapes_that_cannot_be_are_refused(shape: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="expected vocabulary"):
        TinyModel(**shape)
