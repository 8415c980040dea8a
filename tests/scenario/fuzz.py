"""A seeded mutation fuzzer of scenario files: every mutant loads, or is refused with faults that name file and line.

Used with a few hundred mutants by the fast tests and with thousands by a benchmark:
`python -m tests.scenario.fuzz 10000`.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pearl.errors import ScenarioError
from pearl.scenario.load import parse_scenario, shipped_scenarios

LIMIT_S = 2.0
FILE = "mutant.yaml"

SCALARS = (
    *("-5", "0", "1", "1e308", "-1e-308", ".nan", ".inf", "nan", "99999999999999999999999", "0x10", "1_000", "07"),
    *("true", "null", "~", "''", '"', "'", "yes", "2s", "-2s", "2 parsecs", "5%", "500%", "1e400s", "3.5 usd/h"),
    *("[]", "{}", "[1, 2]", "{dist: lognormal}", "{dist: normal, mean: 1}", "*alias", "&anchor 1", "!!python/name:os"),
    *("reserved", "overlap", "decode", "transitioning", "gpus_lost", "qwen3-8b-h200", "./x.yaml", "/dev/null", ".."),
    *("\u0000", "\ufeff", "é", "a" * 5000, "2024-01-01", "<<", "|", ">", "- a", "? b", ": c", "#", "%YAML 1.2"),
)
KEYS = ("zone", "nodes", "role", "dist", "mean", "spec", "kind", "engine", "event", "workers", "unknown_key", "0", "<<")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one mutant."""

    text: str
    loaded: bool
    seconds: float


def fuzz(number: int, *, seed: int = 0) -> Iterator[Verdict]:
    """Mutate shipped scenarios `number` times; AssertionError or any other exception is a finding."""
    rng = random.Random(seed)
    texts = [path.read_text(encoding="utf-8") for path in shipped_scenarios().values()]
    for _ in range(number):
        text = rng.choice(texts)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
            text = rng.choice(MUTATIONS)(rng, text)
        yield check(text)


def check(text: str) -> Verdict:
    """Load one text; asserts that it loads or that every fault names the file and a line of it, in time."""
    start = time.perf_counter()
    refusal: ScenarioError | None = None
    try:
        parse_scenario(text, file=FILE)
    except ScenarioError as error:
        refusal = error
    seconds = time.perf_counter() - start
    assert seconds < LIMIT_S, f"{seconds:.1f} s\n{text}"
    if refusal is not None:
        _check_faults(refusal, text)
    return Verdict(text=text, loaded=refusal is None, seconds=seconds)


def _check_faults(refusal: ScenarioError, text: str) -> None:
    assert refusal.faults, text
    for fault in refusal.faults:
        assert fault.span is not None, f"no place: {fault}\n{text}"
        assert fault.span.file == FILE, f"wrong file: {fault}\n{text}"
        assert 1 <= fault.span.line <= len(text.splitlines()) + 1, f"no such line: {fault}\n{text}"


def _replace_scalar(rng: random.Random, text: str) -> str:
    places = [i for i, c in enumerate(text) if c == ":" and text[i + 1 : i + 2] == " "]
    if not places:
        return text
    start = rng.choice(places) + 2
    end = min((e for e in (text.find(c, start) for c in ",}\n]") if e >= 0), default=len(text))
    return text[:start] + rng.choice(SCALARS) + text[end:]


def _rename_key(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    index = rng.randrange(len(lines))
    head, colon, tail = lines[index].partition(":")
    indent = head[: len(head) - len(head.lstrip())]
    lines[index] = f"{indent}{rng.choice(KEYS)}{colon}{tail}"
    return "\n".join(lines)


def _drop_line(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def _repeat_line(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    index = rng.randrange(len(lines))
    lines.insert(rng.randrange(len(lines) + 1), lines[index])
    return "\n".join(lines)


def _indent_line(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    index = rng.randrange(len(lines))
    lines[index] = " " * rng.randrange(9) + lines[index].lstrip()
    return "\n".join(lines)


def _change_character(rng: random.Random, text: str) -> str:
    index = rng.randrange(len(text) + 1)
    return text[:index] + rng.choice("{}[],:-#&*!|>'\"%@`\t\n\r 0-9sé\u2028\x07") + text[index + rng.randrange(2) :]


def _change_digit(rng: random.Random, text: str) -> str:
    places = [i for i, c in enumerate(text) if c.isdigit()]
    if not places:
        return text
    index = rng.choice(places)
    return text[:index] + rng.choice(("0", "9", "-", ".", "999999", "e9", "")) + text[index + 1 :]


def _truncate(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


MUTATIONS: tuple[Callable[[random.Random, str], str], ...] = (
    *(_replace_scalar,) * 4,
    *(_change_digit,) * 2,
    *(_rename_key, _drop_line, _repeat_line, _indent_line, _change_character, _truncate),
)


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    verdicts = list(fuzz(wanted))
    taken = sum(v.loaded for v in verdicts)
    print(
        f"{wanted} mutants: {taken} loaded, {wanted - taken} refused; slowest {max(v.seconds for v in verdicts):.2f} s"
    )
