"""The tokenizer of a model's directory, for clients that send or want text. Nothing is downloaded, no code is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl.errors import Fault, UsageError

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokenizer:
    """A `pearl.live.protocol.Tokenizer` over that of transformers."""

    inner: Any

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of plain text."""
        return tuple(self.inner.encode(text))

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Token ids of a conversation in the model's template, ready for the assistant's turn."""
        text = self.inner.apply_chat_template([dict(m) for m in messages], add_generation_prompt=True, tokenize=False)
        return tuple(self.inner.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self.inner.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def load_tokenizer(directory: Path) -> ModelTokenizer:
    """The model's own; raises `UsageError` where it has none, or one that cannot be read."""
    if not (directory / TOKENIZER_FILE).is_file():
        raise UsageError(Fault(message=f"no {TOKENIZER_FILE} in {directory}", hint="serve token ids alone"))
    from transformers import AutoTokenizer

    try:
        inner = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception as e:  # the libraries below raise bare ones
        raise UsageError(f"the tokenizer in {directory} cannot be read: {e}") from None
    return ModelTokenizer(inner=inner)
