"""Structured logs: one JSON object a line, with the request id where there is one."""

from __future__ import annotations

import json
import logging
from typing import Any

LOGGER = logging.getLogger("pearl.router")


def log(event: str, *, level: int = logging.INFO, exc_info: bool = False, **fields: Any) -> None:
    """Log an event with its fields, and with the exception that is being handled where `exc_info` asks for it."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, event, exc_info=exc_info, extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    """Formats records as JSON; whatever a client sent is escaped, so no line can be forged."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, without its end."""
        line = {"unix_s": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
