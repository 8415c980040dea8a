from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.core.cluster import Counts, Role
from pearl.core.telemetry import (
    ArrivalRecord,
    BatchRecord,
    EngineRecord,
    StepRecord,
    Telemetry,
    TransitionKind,
    TransitionRecord,
    TurnRecord,
)
from pearl.errors import Fault, InputError
from pearl.tracking.jsonl import KINDS, MAX_FAULTS, parse_telemetry, read_telemetry, telemetry_lines
from tests.tracking.worlds import batch

GOLDEN = Path(__file__).parent / "golden" / "telemetry.jsonl"
EVERY_KIND: tuple[Telemetry, ...] = (
    EngineRecord(worker="n/0", model="Qwen/Qwen3-8B", gpu="H200", kv_tokens=700_000, kv_bytes_per_token=147456, at_s=0),
    ArrivalRecord(trajectory="a", turn=0, new_prompt_tokens=2000, at_s=1.0),
    StepRecord(worker="n/0", seconds=0.07, at_s=1.1, prompts=1, new_tokens=2000),
    StepRecord(worker="n/0", seconds=0.012, at_s=1.2, batch=3, context_tokens=6100, step=2),
    TurnRecord(
        trajectory="a",
        turn=0,
        worker="n/0",
        role=Role.DECODE,
        new_prompt_tokens=2000,
        prompt_tokens=2000,
        cached_tokens=0,
        output_tokens=120,
        prefill_s=0.07,
        decode_s=1.4,
        queue_s=0.03,
        transfer_s=0.02,
        at_s=2.6,
        last=True,
        weight_version=3,
    ),
    TransitionRecord(kind=TransitionKind.BORROW, seconds=6.1, at_s=9.0, borrowing=True, workers=("t/0", "t/1")),
    BatchRecord(predicted_s=100.0, measured_s=104.5, at_s=105.0, counts=Counts(prefill=2, decode=6, borrowed=1)),
)


def faults(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_telemetry(text, file="t.jsonl")
    return [str(fault) for fault in caught.value.faults]


def test_the_format_is_the_golden_files() -> None:
    assert "".join(telemetry_lines(EVERY_KIND)) == GOLDEN.read_text(encoding="utf-8")
    assert read_telemetry(GOLDEN) == EVERY_KIND
    assert {json.loads(line)["record"] for line in GOLDEN.read_text().splitlines()} == KINDS.keys()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_what_is_written_is_read_back(seed: int) -> None:
    records = tuple(batch(0, size=3, rng=Random(seed)))
    assert parse_telemetry("".join(telemetry_lines(records)), file="t") == records


def test_blank_lines_and_comments_are_skipped() -> None:
    text = "# recorded\n\n" + "\r\n".join(line.strip() for line in telemetry_lines(EVERY_KIND)) + "\r\n"
    assert parse_telemetry(text, file="t") == EVERY_KIND
    assert parse_telemetry("", file="t") == ()


GOOD = '{"record": "arrival", "trajectory": "a", "turn": 0, "new_prompt_tokens": 5, "at_s": 1}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"record": "arival"}', ":2:1: unknown record 'arival'; expected one of arrival, turn"),
        ('{"record": "arrival"}', ":2:1: arrival: trajectory, turn, new_prompt_tokens, at_s missing"),
        (GOOD.replace('"at_s"', '"at"'), "arrival: unknown key 'at' (did you mean 'at_s'?)"),
        (GOOD.replace(": 5", ": -5"), "arrival.new_prompt_tokens is -5; expected a whole number from 0"),
        (GOOD.replace(": 5", ": 5.5"), "arrival.new_prompt_tokens is 5.5; expected a whole number from 0"),
        (GOOD.replace(": 5", ": true"), "arrival.new_prompt_tokens is True; expected a whole number"),
        (GOOD.replace(": 5", ": 1" + "0" * 30), "arrival.new_prompt_tokens is a huge number"),
        (GOOD.replace(": 5", ": 1" + "0" * 400), "arrival.new_prompt_tokens is a huge number"),
        (GOOD.replace(": 1}", ": 1" + "0" * 400 + "}"), "arrival.at_s is a huge number; expected a number from 0"),
        (GOOD.replace(": 1}", ": -1" + "0" * 400 + "}"), "arrival.at_s is a huge number; expected a number from 0"),
        (GOOD.replace(": 1}", ": 1" + "0" * 5000 + "}"), "not valid JSON: Exceeds the limit"),
        (GOOD.replace('"a"', "7"), "arrival.trajectory is 7; expected text"),
        (GOOD.replace(": 1}", ": NaN}"), "NaN is not a number; expected a finite number"),
        (GOOD.replace(": 1}", ": 1e999}"), "arrival.at_s is inf; expected a number from 0"),
        (GOOD.replace('"turn"', '"trajectory"'), "duplicate key 'trajectory'"),
        (GOOD[:40], "is the file complete?"),
        ("[]", ":2:1: not a record; expected a JSON object"),
        ("[" * 100_000, "not valid JSON"),
        ('{"record": "step", "worker": "w", "seconds": 0, "at_s": 1, "batch": 1}', "step.seconds is 0; expected a num"),
        ('{"record": "step", "worker": "w", "seconds": 1, "at_s": 1}', "step: neither decodes nor prefills"),
        (
            '{"record": "transition", "kind": "jump", "seconds": 1, "at_s": 1}',
            "transition.kind is 'jump'; expected one",
        ),
        (
            '{"record": "transition", "kind": "drain", "seconds": 1, "at_s": 1, "workers": "w"}',
            "transition.workers is 'w'; expected a list",
        ),
        (
            '{"record": "batch", "predicted_s": 1, "measured_s": 1, "at_s": 1, "counts": {"prefil": 1}}',
            "batch.counts: unknown key 'prefil' (did you mean 'prefill'?)",
        ),
    ],
)
def test_a_fault_has_its_line(line: str, said: str) -> None:
    (fault,) = faults(f"{GOOD}\n{line}\n{GOOD}\n")
    assert fault.startswith("t.jsonl:2:")
    assert said in fault


def test_all_faults_come_at_once_up_to_a_limit() -> None:
    assert [fault.split(":")[1] for fault in faults("x\n" + f"{GOOD}\n" + "y\n")] == ["1", "3"]
    assert len(faults("x\n" * 100)) == MAX_FAULTS


def test_a_file_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none", tmp_path, tmp_path / "latin"):
        with pytest.raises(InputError, match=str(path)):
            read_telemetry(path)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_garbled_telemetry_gives_faults_and_nothing_else(seed: int) -> None:
    rng = Random(seed)
    text = list(GOLDEN.read_text(encoding="utf-8"))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 8)] = rng.choice(
            ['"', "{", "}", "-", "9" * 20, "9" * 400, "null", "\n", "1e400", "\x00"]
        )
    found: tuple[Fault, ...] = ()
    try:
        parse_telemetry("".join(text), file="t.jsonl")
    except InputError as e:
        found = e.faults
    assert all(fault.span is not None and fault.span.line >= 1 for fault in found)
