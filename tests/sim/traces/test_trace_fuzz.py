"""Mutated trace files end in a trace or in one InputError with a place; never in anything else."""

import random

import pytest

from pearl.errors import InputError
from pearl.sim.traces.formats import read_trace
from tests.sim.traces.trace_samples import AGENTS, AVAILABILITY

ROUNDS = 150
TOKENS = [
    "",
    "-1",
    "NaN",
    "1e999",
    "9" * 400,
    "null",
    "true",
    "[]",
    "{}",
    '"',
    ",",
    "\n",
    "\x00",
    "é",
    "[" * 3000,
    "1e9",
]


def mutated(text, rng):
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + rng.choice(TOKENS) + text[at:]
            case 2:
                text = text[:at] + text[at + rng.randint(1, 12) :]
            case _:
                lines = text.split("\n")
                rng.shuffle(lines)
                text = "\n".join(lines)
    return text


def faults_of(path, format_name):
    try:
        read_trace(path, format_name=format_name)
    except InputError as error:
        return error.faults
    return ()


@pytest.mark.parametrize(("name", "text"), [*AVAILABILITY.items(), *AGENTS.items()])
def test_mutations_never_escape_as_anything_but_an_input_error(tmp_path, name, text):
    rng = random.Random(name)
    path = tmp_path / "trace"
    refused = 0
    for _ in range(ROUNDS):
        path.write_bytes(mutated(text, rng).encode())
        for format_name in (None, name):
            faults = faults_of(path, format_name)
            refused += bool(faults)
            assert all(fault.span is not None and fault.span.file == str(path) for fault in faults)
    assert refused > ROUNDS / 3


@pytest.mark.parametrize("name", AVAILABILITY | AGENTS)
def test_empty_files_are_refused_in_every_format(tmp_path, name):
    path = tmp_path / "trace"
    path.write_text("# nothing\n\n")
    with pytest.raises(InputError, match="the file is empty"):
        read_trace(path, format_name=name)
