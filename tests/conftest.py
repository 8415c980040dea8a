"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# Tests assert behaviour, not time: a machine that others share makes any example slow once.
settings.register_profile("pearl", deadline=None)
settings.load_profile("pearl")
