from __future__ import annotations

from pathlib import Path

import pytest

from pearl.errors import InputError
from pearl.makespan.registry import get_predictor, predictor_names

OWN = """
from pearl.core.decision import PathTimes
from pearl.core.problem import MakespanTables

class Flat:
    id = "flat"

    def tables(self, workload, engine, *, workers):
        column = (10**9,) + (1000,) * workers
        return MakespanTables(colocated_ms=column, prefill_ms=column, decode_ms=column)

    def paths(self, workload, engine, counts):
        raise NotImplementedError

class Idle:
    pass

class Needy(Flat):
    def __init__(self, wants):
        self.wants = wants
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize("name", predictor_names())
def test_built_in_predictors_carry_their_name(name: str):
    assert get_predictor(name).id == name


def test_a_researchers_own_file(own_file: Path):
    from tests.makespan.cases import DENSE, FIXED

    tables = get_predictor(f"{own_file}:Flat").tables(FIXED, DENSE, workers=3)
    assert tables.colocated_ms == (10**9, 1000, 1000, 1000)


def test_a_module_and_class():
    assert get_predictor("pearl.makespan.bubble:Bubble").id == "bubble"


def test_unknown_name_offers_the_nearest():
    with pytest.raises(InputError, match="'network'") as caught:
        get_predictor("netwrok")
    (fault,) = caught.value.faults
    assert fault.message == "unknown predictor 'netwrok'"
    assert fault.expected == "one of bubble, network"
    assert fault.hint is not None
    assert "path/to/file.py:Class" in fault.hint


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("{file}:Missing", "no class 'Missing'"),
        ("{file}:Idle", "lacks id, tables, paths"),
        ("{file}:Needy", "cannot be made without arguments"),
        ("{file}:", "unknown predictor"),
        ("no_such_file.py:Flat", "no file no_such_file.py"),
        ("no_such_package.module:Flat", "cannot be imported"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(own_file: Path, target: str, says: str):
    with pytest.raises(InputError, match=says):
        get_predictor(target.format(file=own_file))


def test_a_file_that_does_not_parse(tmp_path: Path):
    broken = tmp_path / "broken.py"
    broken.write_text("class Flat(:\n")
    with pytest.raises(InputError, match="cannot be imported"):
        get_predictor(f"{broken}:Flat")
