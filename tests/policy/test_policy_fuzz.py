from __future__ import annotations

import random

import pytest

from pearl.errors import PolicyError
from pearl.policy.bind import bind_policy
from pearl.policy.load import builtin_folder, load_policy
from tests.policy.fuzz import mutated, outcome, run
from tests.policy.samples import facts


def test_mutated_policies_end_in_a_policy_or_one_clear_error(tmp_path):
    outcomes = list(run(200, seed=20261129, folder=tmp_path))
    assert [o.problem for o in outcomes if o.problem] == []
    assert {o.accepted for o in outcomes} == {True, False}


def test_the_fuzzer_sees_defects(tmp_path, monkeypatch):
    def broken(path):
        raise KeyError(path)

    monkeypatch.setattr("tests.policy.fuzz.load_policy", broken)
    assert outcome(tmp_path / "x.yaml", b"").problem.startswith("KeyError")


@pytest.mark.slow
def test_mutated_policies_that_load_also_bind_or_say_why(tmp_path):
    rng = random.Random(7)
    texts = [path.read_text(encoding="utf-8") for path in sorted(builtin_folder().glob("*.yaml"))]
    bound = 0
    for _ in range(400):
        path = tmp_path / "mutated.yaml"
        path.write_bytes(mutated(rng.choice(texts), rng))
        try:
            bind_policy(load_policy(path), facts())
        except PolicyError as e:
            assert e.faults  # noqa: PT017 -- either outcome is right
        else:
            bound += 1
    assert bound > 20
