"""Tables of step times and the profiles fitted to them: every fault has its place, and what is written reads back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pearl.cli.main import run
from pearl.errors import InputError, UsageError
from pearl.scenario.engines import load_profile, read_profile
from pearl.scenario.fit_files import fit_table
from pearl.scenario.json_keys import key_places
from pearl.scenario.profile_text import profile_text
from pearl.scenario.step_times import read_step_times

TABLE = """{
  "m": {
    "pre": {
      "512": [9.1, 17.2],
      "2048": [28.4, 17.6],
      "8192": [118.0, 19.3]
    },
    "pfx": {"4096+512": 11.7, "16384+512": 17.9},
    "dec": {"1024/1": [6.9, 17.0], "1024/64": [9.8, 25.9],
            "8192/16": [10.6, 34.9], "8192/64": [19.7, 88.9]}
  }
}
"""
SHAPE = "36,8,128"
HUGE = "9" * 400


def write(folder: Path, text: str = TABLE) -> Path:
    path = folder / "t.json"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ('"512": [9.1', '"512": [true', "4:7", "true is no step time in milliseconds; expected a number from 0.001"),
        ('"512": [9.1', '"512": ["9.1"', "4:7", '"9.1" is no step time'),
        ('"512": [9.1', '"512": [NaN', "4:7", "NaN is no step time"),
        ('"512": [9.1', '"512": [1e-300', "4:7", "1e-300 is no step time"),
        ('"512": [9.1', f'"512": [{HUGE}', "4:7", "is no step time"),
        ('"512": [9.1, 17.2]', '"512": [9.1]', "4:7", "[9.1] is no row of pre; expected [ms, GiB]"),
        ('"512": [9.1, 17.2]', '"512": null', "4:7", "null is no row of pre"),
        ('"512": [9.1, 17.2]', '"512": [9.1, -1]', "4:7", "-1 is no memory in GiB"),
        ('"512"', f'"{HUGE}"', "4:7", "is no number of tokens"),
        ('"512"', '"0"', "4:7", '"0" is no number of tokens'),
        ('"512"', '" 512"', "4:7", '" 512" is no number of tokens'),
        ('"512"', '"2048"', "5:7", "duplicate key '2048' (first at line 4, column 7)"),
        ('"4096+512"', '"-5+512"', "8:13", '"-5+512" is no prefill after cached tokens; expected "cached+new"'),
        ('"16384+512"', '"16384"', "8:31", '"16384" is no prefill after cached tokens'),
        ('"16384+512": 17.9', '"16384+512": [1, 2]', "8:31", "[1, 2] is no step time"),
        ('"8192/16"', '"1024/0"', "10:13", '"1024/0" is no decode step; expected "context/batch"'),
        ('"8192/16"', '"99999999/16"', "10:13", "is no decode step"),
        ('"pfx"', '"prefix"', "2:3", "m: not a step-time table: no mapping 'pfx'"),
        ('"512": [9.1, 17.2],', "", "2:3", "m: too few points"),
    ],
)
def test_a_fault_of_a_table_has_its_place(tmp_path: Path, old: str, new: str, place: str, words: str) -> None:
    text = TABLE.replace(old, new, 1)
    if words.endswith("too few points"):
        text = text.replace('"2048": [28.4, 17.6],', "")
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_step_times(path)
    (fault,) = caught.value.faults
    assert str(fault).startswith(f"{path}:{place}: ")
    assert words in str(fault)


def test_every_fault_of_every_model_is_told_at_once(tmp_path: Path) -> None:
    bad = {"a": {"pre": {"x": [1, 1]}, "pfx": [], "dec": {"1/1": [0, 1]}}, "b": 5}
    with pytest.raises(InputError) as caught:
        read_step_times(write(tmp_path, json.dumps(bad, indent=1)))
    assert [fault.span.line for fault in caught.value.faults if fault.span] == [4, 9, 11, 17]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"m": ' + "9" * 5000 + "}", "\ufeff" + TABLE, ""])
def test_what_is_no_json_is_one_fault(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="not JSON"):
        read_step_times(write(tmp_path, text))


@given(
    data=st.recursive(
        st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
    ),
    indent=st.none() | st.just("\t"),
    ascii=st.booleans(),
)
def test_every_key_has_its_place(data: Any, indent: str | None, ascii: bool) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=ascii)
    places, faults = key_places(text, "f")
    assert not faults
    assert set(places) == set(keys_of(data, ()))
    lines = text.split("\n")
    for path, span in places.items():
        assert lines[span.line - 1][span.column - 1 :].startswith(json.dumps(path[-1], ensure_ascii=ascii))


def keys_of(data: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    if not isinstance(data, dict):
        return []
    return [found for key, inner in data.items() for found in [(*path, key), *keys_of(inner, (*path, key))]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gpu": ""}, "--gpu ''; expected a name such as H200"),
        ({"gpu": 'H 2"0: {x'}, "expected a name such as H200"),
        ({"shape": "9" * 5000 + ",1,1"}, "whole numbers from 1 to 99999"),
        ({"shape": "36,0,128"}, "whole numbers from 1 to 99999"),
        ({"gpu_memory": "1e290TB"}, "--gpu-memory '1e290TB': expected a size in bytes of at most"),
        ({"gpu_memory": "-5 GB"}, "expected a size in bytes above 0"),
    ],
)
def test_an_argument_that_no_profile_can_have_is_refused(tmp_path: Path, arguments: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        fit_table(write(tmp_path), **{"gpu": "H200", "shape": SHAPE, **arguments})
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("a/b c", "metadata.name: string should match"),
        ("m" * 200, "at most 128 characters"),
        ("\ud800", "no profile can"),
    ],
)
def test_a_model_whose_profile_no_file_can_hold_is_refused_before_anything_is_printed(
    tmp_path: Path, model: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, TABLE.replace('"m"', json.dumps(model), 1))
    assert run(["profile", "fit", str(path), "--gpu", "H200", "--shape", SHAPE, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert not out
    assert not (tmp_path / "out").exists()


def test_two_models_of_one_file_name_are_refused(tmp_path: Path) -> None:
    table = json.loads(TABLE)["m"]
    with pytest.raises(UsageError, match=r"'a/m' and 'b/m' would both be profile 'm-h200' \(fit one at a time"):
        fit_table(write(tmp_path, json.dumps({"a/m": table, "b/m": table})), gpu="H200", shape=SHAPE)


@pytest.mark.parametrize("gpu", ["true", "123", "1e5", "H200", "null", "0x10", "yes", "1_000"])
def test_names_that_yaml_would_take_for_something_else_read_back(tmp_path: Path, gpu: str) -> None:
    (item,) = fit_table(write(tmp_path), gpu=gpu, shape=SHAPE, gpu_memory="141 GB")
    path = tmp_path / "p.yaml"
    path.write_text(profile_text(item.profile, description="", derivation={}), encoding="utf-8")
    assert read_profile(path).gpu == gpu


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_of_a_profile_reads_back(text: str) -> None:
    profile = replace(load_profile("qwen3-8b-h100"), model=text)
    data = yaml.safe_load(profile_text(profile, description=text, derivation={"a": text}))
    assert data["spec"]["model"] == data["metadata"]["description"] == data["derivation"]["a"] == text
