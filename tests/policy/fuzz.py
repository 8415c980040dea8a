"""Seeded mutations of policy files: each must end in a policy, or in one error whose faults name file and line."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pearl.errors import PolicyError
from pearl.policy.load import builtin_folder, load_policy

LIMIT_S = 2.0
TOKENS = (
    *("*", "/", "-", "+", "<=", ">=", "==", "<", "(", ")", "[", "]", "{", "}", ":", ",", "'", '"', "#", "%", "&", "|"),
    *(
        "T",
        "N_P",
        "N_D",
        "max(",
        "min(",
        "abs(",
        "count(role=decode)",
        "exposure()",
        "forecast['x']",
        "price['reserved']",
    ),
    *(
        "and",
        "or",
        "not",
        "if",
        "else",
        "true",
        "null",
        "~",
        "0",
        "-1",
        "1e99",
        "1e-99",
        "9" * 50,
        "0x10",
        ".inf",
        ".nan",
    ),
    *(
        "8s",
        "usd",
        "GiB",
        "T_prefill",
        "demand_rate",
        "node",
        "zone",
        "extends",
        "- ",
        "*a",
        "&a",
        "!!int",
        "<<",
        "\t",
        "\x00",
    ),
    *("\ud7ff", "é", "𝕏", "\u2028", "\ufeff", "? ", "|-", ">-", "..", "builtin/pearl", "[]", "{}", "''"),
)
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a mutated file led to; `problem` is empty where it behaved."""

    text: bytes
    accepted: bool
    seconds: float
    problem: str = ""


def mutated(text: str, rng: random.Random) -> bytes:
    """One to four mutations of bytes, lines or tokens."""
    for _ in range(rng.randint(1, 4)):
        text = rng.choice((_mutate_line, _mutate_token, _mutate_token, _mutate_character))(text, rng)
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    if raw and rng.random() < 0.15:
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def _mutate_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case _:
            lines[i] = " " * rng.randint(0, 8) + lines[i].lstrip(" ")
    return "".join(lines)


def _mutate_token(text: str, rng: random.Random) -> str:
    words = list(_WORD.finditer(text))
    if not words:
        return rng.choice(TOKENS)
    word, other = rng.choice(words), rng.choice(words)
    new = rng.choice((rng.choice(TOKENS), other.group(), "", word.group() + rng.choice(TOKENS), word.group() * 2))
    return text[: word.start()] + new + text[word.end() :]


def _mutate_character(text: str, rng: random.Random) -> str:
    i = rng.randrange(len(text) + 1)
    return (
        text[:i] + rng.choice((rng.choice(TOKENS)[:1], "", chr(rng.randrange(32, 127)))) + text[i + rng.randint(0, 2) :]
    )


def run(count: int, *, seed: int, folder: Path) -> Iterator[Outcome]:
    """Load `count` mutations of the built-in policies, written to `folder` one at a time."""
    rng = random.Random(seed)
    originals = [path.read_text(encoding="utf-8") for path in sorted(builtin_folder().glob("*.yaml"))]
    path = folder / "mutated.yaml"
    for _ in range(count):
        text = mutated(rng.choice(originals), rng)
        path.write_bytes(text)
        yield outcome(path, text)


def outcome(path: Path, text: bytes) -> Outcome:
    """Load one file."""
    start = time.perf_counter()
    accepted, problem = True, ""
    try:
        load_policy(path)
    except PolicyError as e:
        accepted = False
        problem = "; ".join(f"no place: {fault}" for fault in e.faults if fault.span is None)
        problem = problem or ("" if e.faults else "an error without a fault")
    except Exception as e:
        accepted, problem = False, f"{type(e).__name__}: {e}"
    seconds = time.perf_counter() - start
    if seconds > LIMIT_S:
        problem = problem or f"took {seconds:.1f} s"
    return Outcome(text=text, accepted=accepted, seconds=seconds, problem=problem)
