from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from pearl.live.cluster.load import builtin_clusters
from pearl.live.cluster.reference import cluster_reference, update_page
from pearl.live.cluster.schema import cluster_schema
from tests.live.cluster.test_cluster_load import TEXT

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(cluster_schema())


def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert update_page(text) == text, "run: python -m pearl.live.cluster.reference docs/cluster.md"


def test_the_page_names_every_built_in_cluster():
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in builtin_clusters() if f"| `{name}` |" not in text] == []


def test_every_field_has_a_meaning():
    rows = [line for line in cluster_reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.split(" | ")[-1].strip(" |") == ""] == []


def test_a_page_without_a_place_for_the_reference_is_refused():
    with pytest.raises(ValueError, match="needs the lines"):
        update_page("# nothing here\n")


@pytest.mark.parametrize("name", sorted(builtin_clusters()))
def test_built_in_clusters_meet_the_schema(validator: Draft202012Validator, name: str):
    validator.validate(yaml.safe_load(builtin_clusters()[name].read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("old", "new"), [("64 MiB", "64"), ("device: cpu", "device: tpu"), ("workers: 2", "workers: 0"), ("drain", "drein")]
)
def test_the_schema_refuses_what_the_reader_refuses(validator: Draft202012Validator, old: str, new: str):
    assert validator.is_valid(yaml.safe_load(TEXT))
    assert not validator.is_valid(yaml.safe_load(TEXT.replace(old, new)))
