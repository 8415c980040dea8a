"""The admin plane of the router's HTTP service: who may call it, and how a controller adds its part."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from aiohttp import web

from pearl.live.router.call import RefusedError
from pearl.live.router.service import Router


def authorise(request: web.Request, token: str | None) -> None:
    """Raises `RefusedError` unless the call carries the bearer token; without a token nobody may call."""
    if token is None:
        raise RefusedError(403, "no_admin", "this router was started without an admin token: admin routes are shut")
    given = request.headers.get("Authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise RefusedError(401, "unauthorised", "admin routes need 'Authorization: Bearer <admin token>'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A controller's part of the service. It owns the pool: the router's own ways to change that are shut then."""

    routes: Sequence[web.RouteDef]
    metrics: Callable[[], str]
    """Text that is appended to the metrics page."""


Mount = Callable[[Router], AbstractAsyncContextManager[Extension]]
"""Entered once the router runs and before anybody is served; left before the router stops."""
