from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import yaml

from pearl.cli.main import run
from pearl.core.telemetry import EngineRecord
from pearl.scenario.engines import read_profile
from pearl.scenario.load import load_scenario
from pearl.tracking.jsonl import telemetry_lines
from tests.tracking.worlds import ENGINE, batch, engine_steps

SAID = EngineRecord(worker="n/0", model="8B", gpu="any", kv_tokens=500_000, kv_bytes_per_token=147_456, at_s=0.0)
HEAD = """apiVersion: pearl.dev/v1alpha1
kind: Scenario
metadata: {name: fitted}
spec:
  cluster: {gpu: any, pools: [{zone: reserved, nodes: 1, gpus_per_node: 4, role: colocated}]}
"""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    records = [SAID, *(r for step in range(3) for r in batch(step, size=32))]
    records += [s for step in range(3) for s in engine_steps(ENGINE, "n/0", number=60, rng=Random(step), step=step)]
    path = tmp_path / "telemetry.jsonl"
    path.write_text("".join(telemetry_lines(records)), encoding="utf-8")
    return path


def test_what_it_prints_is_a_scenario(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", str(recorded), "--name", "live"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(HEAD + "".join(f"  {line}\n" for line in out.splitlines()), encoding="utf-8")
    loaded = load_scenario(scenario)
    assert loaded.workload.trajectories == 32
    assert loaded.workload.output_tokens.expected == pytest.approx(300, rel=0.1)
    assert loaded.engine.name == "live"
    assert loaded.engine.kv_decode_tokens == 500_000
    assert loaded.engine.decode.seconds(32, 100_000) == pytest.approx(ENGINE.decode.seconds(32, 100_000), rel=0.05)


def test_the_engine_part_is_a_profile_file(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "engine.yaml"
    args = ["fit", str(recorded), "--part", "engine", "--prior", "qwen3-8b-h200", "--output", str(out)]
    assert run(args) == 0
    profile = read_profile(out)
    assert profile.name == "qwen3-8b-h200"
    assert profile.prefill.seconds(4000) == pytest.approx(ENGINE.prefill.seconds(4000), rel=0.05)
    assert profile.fit is not None
    assert profile.fit.source == "telemetry"


@pytest.mark.parametrize("name", ["123", "true"])
def test_a_name_that_yaml_would_take_for_something_else_reads_back(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(["fit", str(recorded), "--name", name]) == 0
    scenario = tmp_path / "scenario.yaml"
    out = capsys.readouterr().out
    scenario.write_text(HEAD + "".join(f"  {line}\n" for line in out.splitlines()), encoding="utf-8")
    assert load_scenario(scenario).engine.name == name


@pytest.mark.parametrize("name", ["a: b", "x\ny", "m" * 129])
def test_a_name_that_no_profile_has_is_refused(recorded: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run(["fit", str(recorded), "--name", name, "--prior", "qwen3-8b-h200"]) == 2
    assert "metadata.name" in capsys.readouterr().err


def test_the_workload_part_needs_no_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_text("".join(telemetry_lines(batch(0))), encoding="utf-8")
    assert run(["fit", str(path), "--part", "workload", "--trajectories", "5", "--max-context", "9000"]) == 0
    section = yaml.safe_load(capsys.readouterr().out)["workload"]
    assert (section["trajectories"], section["max_context_tokens"]) == (5, 9000)
    assert run(["fit", str(path)]) == 2
    assert "too little telemetry for an engine profile; expected an `engine` record" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "too little telemetry for a workload profile; expected 20 `turn` records"),
        ('{"record": "turn"}\n{"record": "x"}\n', "turns.jsonl:2:1: unknown record 'x'"),
    ],
)
def test_bad_telemetry_is_exit_2(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_text(text, encoding="utf-8")
    assert run(["fit", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
