from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def shared_policy() -> Path:
    """The example policy beside the repository; tests that read it skip where it is absent."""
    path = Path(__file__).resolve().parents[3] / "shared" / "policy-example.yaml"
    if not path.is_file():
        pytest.skip("the example policy is not here")
    return path
