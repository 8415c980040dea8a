"""Where the log goes: standard error, as lines for people or as JSON objects. Quiet unless something is wrong."""

from __future__ import annotations

import logging
from typing import assert_never

from pearl.live.control.options import LogFormat
from pearl.live.router.log import JsonFormatter

LEVELS = {
    "pearl": (logging.WARNING, logging.INFO, logging.INFO),
    "pearl.router": (logging.WARNING, logging.WARNING, logging.INFO),
}
"""Levels by logger, for no, one and two `-v`: the router logs every request."""


class TextFormatter(logging.Formatter):
    """`18:40:01 decision decision=d-000012 plan=p-000007`; a warning says that it is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, unless an exception is shown."""
        fields = " ".join(f"{key}={_shown(value)}" for key, value in getattr(record, "fields", {}).items())
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        line = f"{self.formatTime(record, '%H:%M:%S')} {level}{record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logs(form: LogFormat, *, verbosity: int) -> None:
    """Send what `pearl` logs to standard error, and to nobody else."""
    handler = logging.StreamHandler()
    match form:
        case LogFormat.TEXT:
            handler.setFormatter(TextFormatter())
        case LogFormat.JSON:
            handler.setFormatter(JsonFormatter())
        case _:
            assert_never(form)
    root = logging.getLogger("pearl")
    root.handlers, root.propagate = [handler], False
    for name, levels in LEVELS.items():
        logging.getLogger(name).setLevel(levels[min(verbosity, len(levels) - 1)])


def _shown(value: object) -> str:
    """Whatever a client sent stays on the line that it is shown on."""
    text = str(value)
    return repr(text) if any(not char.isprintable() or char == " " for char in text) or not text else text
