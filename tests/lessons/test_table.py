"""docs/lessons.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs" / "lessons.md").read_text(encoding="utf-8"))


def test_the_table_names_tests():
    assert len(NAMED) > 30


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_a_test_that_is_named_exists(file, name):
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
