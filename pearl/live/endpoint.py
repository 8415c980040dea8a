"""Where a controller can be reached: two files in its state folder, one with its URL and one with its admin token.

STATE_DIR/endpoint.json   {"url": …, "pid": …, "started_unix_s": …}, while it runs
STATE_DIR/token           the bearer token of the admin plane, for the owner alone; kept between runs
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pearl.errors import Fault, InputError, UsageError
from pearl.files import write_whole

DEFAULT_STATE_DIR = Path("pearl-state")
TOKEN_VARIABLE = "PEARL_ADMIN_TOKEN"
"""Environment variable that holds the token in place of the file."""
ENDPOINT_FILE = "endpoint.json"
TOKEN_FILE = "token"
TOKEN_BYTES = 32
LONGEST_FILE_BYTES = 65_536
"""Both files hold one line; past this they are something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A controller that said it was running."""

    url: str
    pid: int
    started_unix_s: float


def publish_endpoint(state_dir: Path, endpoint: Endpoint) -> None:
    """Say where the controller is; raises `InputError` where that cannot be written."""
    write_whole(state_dir / ENDPOINT_FILE, json.dumps(asdict(endpoint)) + "\n")


def withdraw_endpoint(state_dir: Path) -> None:
    """The controller has ended. Idempotent; a file that cannot be removed stays: nobody answers at its address."""
    with suppress(OSError):
        (state_dir / ENDPOINT_FILE).unlink(missing_ok=True)


def read_endpoint(state_dir: Path) -> Endpoint | None:
    """Where the controller is; None where none runs; raises `InputError` for a file that does not say it."""
    path = state_dir / ENDPOINT_FILE
    text = _read(path)
    if text is None:
        return None
    try:
        match json.loads(text):
            case {"url": str(url), "pid": int(pid), "started_unix_s": int() | float() as started}:
                return Endpoint(url=url, pid=pid, started_unix_s=float(started))
    except (ValueError, OverflowError, RecursionError):
        pass
    hint = "it is written by `pearl serve`; remove it if no controller runs"
    raise InputError(Fault(message=f"{path}: not an endpoint", expected="url, pid and started_unix_s", hint=hint))


def read_token(state_dir: Path) -> str | None:
    """The admin token: of the environment, else of the file; None without either.

    Raises `InputError` for one that no HTTP header can carry.
    """
    if known := os.environ.get(TOKEN_VARIABLE):
        return sendable(known, TOKEN_VARIABLE)
    path = state_dir / TOKEN_FILE
    token = (_read(path) or "").strip()
    return sendable(token, str(path)) if token else None


def ensure_token(state_dir: Path) -> str:
    """The admin token, made at the first start; raises `UsageError` where others may read the file."""
    if (known := os.environ.get(TOKEN_VARIABLE)) is not None:
        if not known.strip():
            raise UsageError(Fault(message=f"{TOKEN_VARIABLE} is empty", expected="a secret, or no such variable"))
        return sendable(known, TOKEN_VARIABLE)
    path = state_dir / TOKEN_FILE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _private_token(path)
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror or e}") from None
    token = secrets.token_urlsafe(TOKEN_BYTES)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{token}\n")
    except OSError as e:
        path.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {e.strerror or e}") from None
    return token


def sendable(token: str, where: str) -> str:
    """The token; raises `UsageError`, which names where it is from, for one that no HTTP header can carry."""
    if not token.isascii() or any(not char.isprintable() or char == " " for char in token):
        raise UsageError(Fault(message=f"{where}: no HTTP header can carry it", expected="ASCII without spaces"))
    return token


def _private_token(path: Path) -> str:
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror or e}") from None
    if mode & 0o077:
        hint = f"chmod 600 {path}, or remove the file to get a new token"
        raise UsageError(Fault(message=f"{path} has mode {mode:o}: others may read the token", hint=hint))
    token = (_read(path) or "").strip()
    if not token:
        raise UsageError(Fault(message=f"{path} is empty", hint="remove the file to get a new token"))
    return sendable(token, str(path))


def _read(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from None
    if len(text) > LONGEST_FILE_BYTES:
        raise InputError(f"{path}: larger than {LONGEST_FILE_BYTES} bytes")
    return text
