from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pearl.errors import UsageError
from pearl.live.tokenizer import load_tokenizer


def test_a_model_without_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no tokenizer\.json in .* \(serve token ids alone\)"):
        load_tokenizer(tmp_path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("transformers", reason="needs transformers (it comes with vllm, the live extra)")
    from pearl.live.tiny_model import TinyModel, write_tiny_model

    return load_tokenizer(write_tiny_model(tmp_path_factory.mktemp("tiny"), TinyModel(seed=0)))


@pytest.mark.parametrize("text", ["hello", "Größe 5 µs\n\ttab", ""])
def test_text_comes_back(tiny: Any, text: str) -> None:
    ids = tiny.encode(text)
    assert list(ids) == list(text.encode())
    assert tiny.decode(ids) == text


def test_half_a_character_is_shown_as_such(tiny: Any) -> None:
    assert tiny.decode("ö".encode()[:1]) == "\ufffd"


def test_a_conversation_is_ready_for_the_assistant(tiny: Any) -> None:
    ids = tiny.encode_chat([{"role": "user", "content": "hi"}])
    assert tiny.inner.decode(list(ids)).rstrip().endswith("<|im_start|>assistant")
    assert max(ids) >= 256, "special tokens are single tokens"


def test_a_file_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers (it comes with vllm, the live extra)")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot be read"):
        load_tokenizer(tmp_path)
