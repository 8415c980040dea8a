"""The model before the first engine: written where it is a tiny one, and checked where it is not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from pearl.errors import Fault, UsageError
from pearl.live.cluster.model import LiveCluster
from pearl.live.tiny_model import TinyModel, write_tiny_model


def prepare_model(cluster: LiveCluster) -> frozenset[int]:
    """Write the tiny model where one is asked for and not there yet; returns the model's end tokens.

    Raises `UsageError` where the model's own files cannot be read: it must lie on this machine too.
    """
    model = cluster.model
    if model.tiny is not None and not model.path.exists():
        _write_whole(model.path, model.tiny)
    if not (model.path / "config.json").is_file():
        raise UsageError(Fault(message=f"no model in {model.path}", expected="a directory with config.json"))
    return end_token_ids(model.path) if model.eos_token_ids is None else model.eos_token_ids


def end_token_ids(directory: Path) -> frozenset[int]:
    """End tokens that `generation_config.json`, or else `config.json`, names; none where neither does."""
    for name in ("generation_config.json", "config.json"):
        found = _read(directory / name).get("eos_token_id")
        if found is not None:
            return frozenset(found if isinstance(found, list) else [found])
    return frozenset()


def _write_whole(path: Path, model: TinyModel) -> None:
    """The directory appears when it is complete: another process may look for it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write_tiny_model(partial, model)
        partial.rename(path)
    except OSError as e:
        raise UsageError(Fault(message=f"cannot write {path}: {e.strerror or e}")) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise UsageError(Fault(message=f"{path}: {e}", expected="the model's configuration")) from None
    return content if isinstance(content, dict) else {}
