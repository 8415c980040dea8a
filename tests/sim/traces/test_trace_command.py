import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from pearl.cli.trace import trace
from pearl.errors import InputError, UsageError
from pearl.sim.traces.formats import read_availability
from tests.sim.traces.trace_samples import KV_TABLE, OWN, PARCAE

INSTANT = "at_s,event,node,gpus,grace_s\n0,add,a,1,\n"


@pytest.fixture
def files(tmp_path):
    paths = {"own": OWN, "parcae": PARCAE, "agents": KV_TABLE, "instant": INSTANT}
    for name, text in paths.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(trace, [str(a) for a in arguments], catch_exceptions=True)


def test_info_as_text_shows_both_kinds(files):
    result = invoke("info", files / "parcae", files / "agents", "--window", "90s")
    assert result.exit_code == 0
    assert "availability over 0.05 h, 2 events" in result.output
    assert "0.03h" in result.output  # the second window
    assert "3 trajectories, longest context 1430 tokens" in result.output
    assert "note: 1 compacted or replaced contexts" in result.output


def test_info_as_json(files):
    result = invoke("info", files / "own", files / "agents", "--json")
    own, agents = json.loads(result.output)
    assert (own["kind"], own["max_gpus"], own["horizon_s"]) == ("availability", 9, 120.0)
    assert agents["quantities"]["turns"]["mean"] == pytest.approx(5 / 3)
    assert agents["quantities"]["environment_s"]["p50"] == 4.0


def test_convert_cuts_scales_and_writes_whole_files(files):
    out = files / "out.csv"
    result = invoke("convert", files / "own", "--start", "30s", "--length", "60s", "--max-gpus", "4", "--out", out)
    assert result.exit_code == 0
    assert result.output == ""
    assert read_availability(out).counts() == ((0.0, 4), (30.5, 2))
    assert sorted(p.name for p in files.iterdir()) == ["agents", "instant", "out.csv", "own", "parcae"]


def test_convert_to_standard_output_reads_back(files):
    result = invoke("convert", files / "parcae", "--grace", "2min", "--gpus-per-node", 8)
    (files / "again").write_text(result.output)
    again = read_availability(files / "again")
    assert again.counts() == ((0.0, 16), (120, 8))
    assert again.events[-1].grace_s == 120


def test_generate_is_reproducible_and_in_whole_nodes():
    options = ("generate", "--seed", 5, "--max-gpus", 32, "--gpus-per-node", 8, "--changes-per-hour", 20)
    first = invoke(*options)
    assert first.exit_code == 0
    assert first.output == invoke(*options).output
    assert {line.split(",")[3] for line in first.output.splitlines()[2:-1]} == {"8"}


def test_generate_oscillates():
    result = invoke("generate", "--max-gpus", 4, "--abundance", 0.5, "--oscillate", "10min", "--horizon", "20min")
    assert [line.split(",")[0] for line in result.output.splitlines() if ",reclaim," in line] == ["300.0"] * 2 + [
        "900.0"
    ] * 2


def test_profile_prints_a_workload(files):
    result = invoke("profile", files / "agents", "--trajectories", 32, "--shape", "empirical")
    assert result.output.startswith("# fitted to agents\n# 1 compacted")
    assert "  trajectories: 32\n" in result.output
    assert "  new_prompt_tokens: {dist: empirical, values: [150, 160]}\n" in result.output


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("convert", "{}/agents"), InputError, "is a trace of agents"),
        (("profile", "{}/own"), InputError, "is a trace of availability"),
        (("info", "{}/absent"), InputError, "cannot read"),
        (("convert", "{}/own", "--start", "1h"), UsageError, "is not inside the trace"),
        (("convert", "{}/own", "--max-gpus", "9", "--gpus-per-node", "2"), UsageError, "not a positive multiple"),
        (("info", "{}/own", "--window", "0s"), UsageError, "expected a length above 0 s"),
        (("info", "{}/instant", "--window", "0s"), UsageError, "expected a length above 0 s"),
        (("info", "{}/own", "--window", "1ms"), UsageError, "more than 10000"),
        (("generate", "--max-gpus", "9", "--gpus-per-node", "2"), UsageError, "not a multiple"),
        (("generate", "--max-gpus", "9", "--abundance", "7"), InputError, "expected 0 to 1"),
        (("generate", "--max-gpus", "9", "--abundance", "7", "--oscillate", "1min"), UsageError, "expected 0 to 1"),
        (("generate", "--max-gpus", "9", "--abundance", "nan", "--oscillate", "1h"), UsageError, "expected 0 to 1"),
        (("generate", "--max-gpus", "9", "--oscillate", "1ns"), InputError, "period_s is 1e-09; expected 0.001 to"),
        (("generate", "--max-gpus", "9", "--oscillate", "1ms"), InputError, "expected at most 1000000 arrivals"),
        (("generate", "--max-gpus", "9", "--oscillate", "1h", "--grace", "9d"), InputError, "grace_s is 777600;"),
        (("generate", "--max-gpus", "9", "--oscillate", "1h", "--horizon", "3000d"), InputError, "horizon_s is"),
        (("generate", "--max-gpus", "9", "--oscillate", "1h", "--burst", "7"), UsageError, "--burst: a wave of"),
        (
            ("generate", "--max-gpus", "9", "--oscillate", "1h", "--changes-per-hour", "-5", "--seed", "1"),
            UsageError,
            "--seed, --changes-per-hour: a wave of --oscillate is not random",
        ),
        (("generate", "--max-gpus", "65537"), InputError, "max_nodes is 65537; expected 1 to 65536"),
        (("generate", "--max-gpus", "65537", "--oscillate", "1h"), InputError, "expected 0 <= low < high <= 65536"),
        (("convert", "{}/own", "--max-gpus", "65537"), UsageError, "65537 GPUs are more than 65536 nodes of 1 have"),
    ],
)
def test_misuse_is_one_clear_error(files, arguments, error, message):
    result = invoke(*(a.format(files) for a in arguments))
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


@pytest.mark.parametrize(
    "arguments", [("convert", "{}/own"), ("generate", "--max-gpus", "4"), ("profile", "{}/agents")]
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(files, arguments):
    result = invoke(*(a.format(files) for a in arguments), "--out", files / "no" / "where")
    assert result.exit_code == 2
    assert "Invalid value for '--out': cannot write" in result.output


@pytest.mark.parametrize("value", ["30", "soon", "-5s"])
def test_a_time_needs_a_unit_and_must_not_be_negative(files, value):
    result = invoke("info", files / "own", f"--grace={value}")
    assert result.exit_code == 2
    assert "Invalid value for '--grace'" in result.output


def test_a_trace_whose_name_is_no_text_is_written_and_read_back(files):
    name = files / os.fsdecode(b"caf\xe9.csv")
    name.write_text(OWN)
    assert invoke("convert", name, "--out", files / "out.csv").exit_code == 0
    assert read_availability(files / "out.csv").events == read_availability(name).events


@pytest.mark.parametrize("option", ["--grace", "--start", "--length"])
def test_a_time_past_what_a_trace_can_hold_is_refused(files, option):
    result = invoke("convert", files / "own", option, "20000d")
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': '20000d': a time of more than ten years" in result.output


@pytest.mark.parametrize("command", ["generate", "convert"])
def test_a_number_of_gpus_has_a_limit(files, command):
    result = invoke(command, *([files / "own"] if command == "convert" else []), "--max-gpus", "9" * 400)
    assert result.exit_code == 2
    assert "is not in the range 1<=x<=4194304" in result.output


def test_convert_keeps_an_event_at_the_traces_end(files):
    (files / "bamboo").write_text("0,add,a\n9000,add,b\n")
    whole, rest = (invoke("convert", files / "bamboo", *part).output for part in ((), ("--start", "1s")))
    assert "9.0,add,b,1," in whole.splitlines()
    assert "8.0,add,b,1," in rest.splitlines()


@pytest.mark.parametrize("command", [("generate", "--max-gpus", 4), ("convert", "own"), ("profile", "agents")])
def test_every_result_goes_through_links_and_pipes_and_never_to_a_folder(command, files, monkeypatch):
    monkeypatch.chdir(files)
    (files / "target").write_text("old")
    (files / "link").symlink_to("target")
    assert invoke(*command, "--out", "link").exit_code == 0
    assert (files / "link").is_symlink()
    assert (files / "target").read_text() == invoke(*command).output
    os.mkfifo(files / "pipe")
    with ThreadPoolExecutor(1) as pool:
        through = pool.submit((files / "pipe").read_text)
        assert invoke(*command, "--out", "pipe").exit_code == 0
        assert through.result(timeout=10) == (files / "target").read_text()
    assert (files / "pipe").is_fifo()
    for nowhere in (".", "", "n" * 256, "no/folder"):
        result = invoke(*command, "--out", nowhere)
        assert (result.exit_code, type(result.exception)) == (2, SystemExit)
