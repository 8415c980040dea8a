"""Structured logs of the control plane, one JSON object a line with `pearl.live.router.log.JsonFormatter`."""

from __future__ import annotations

import logging
from typing import Any

LOGGER = logging.getLogger("pearl.control")


def log(what: str, /, *, level: int = logging.INFO, exc_info: bool = False, **fields: Any) -> None:
    """Log what happened, with its fields; ids of events, decisions and plans are `seq`, `decision`, `plan`."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, what, exc_info=exc_info, extra={"fields": fields})
