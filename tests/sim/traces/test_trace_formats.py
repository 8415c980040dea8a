import pytest

from pearl.errors import InputError
from pearl.sim.traces.availability import Change
from pearl.sim.traces.formats import FORMATS, format_of, read_agents, read_availability
from pearl.sim.traces.reading import TraceText
from pearl.sim.traces.recording import ReadOptions
from tests.sim.traces.trace_samples import (
    AGENTS,
    AVAILABILITY,
    BAMBOO_COUNTS,
    BAMBOO_EVENTS,
    OWN,
    PARCAE,
    SHARED,
    SKYPILOT,
)


def written(tmp_path, text, name="trace.txt"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(("name", "text"), [*AVAILABILITY.items(), *AGENTS.items()])
def test_each_format_is_told_from_its_text(name, text):
    assert format_of(TraceText(file="f", text=text)).name == name


def test_every_format_has_a_sample():
    assert {f.name for f in FORMATS} == AVAILABILITY.keys() | AGENTS.keys()


@pytest.mark.parametrize(
    ("text", "steps", "horizon_s"),
    [
        (OWN, ((0.0, 2), (60.5, 1), (90.0, 9)), 120),
        (PARCAE, ((0.0, 2), (120, 1)), 180),
        (BAMBOO_EVENTS, ((0.0, 2), (60, 1), (90, 2)), 90),
        (BAMBOO_COUNTS, ((0.0, 4), (60, 2), (180, 3)), 180),
        (SKYPILOT, ((0.0, 0), (300, 2), (900, 1)), 1200),
    ],
    ids=AVAILABILITY,
)
def test_counts_and_horizon(tmp_path, text, steps, horizon_s):
    trace = read_availability(written(tmp_path, text))
    assert trace.counts() == steps
    assert trace.horizon_s == horizon_s


@pytest.mark.parametrize("text", [PARCAE, BAMBOO_EVENTS, BAMBOO_COUNTS, SKYPILOT])
def test_options_fill_in_what_a_recording_does_not_say(tmp_path, text):
    trace = read_availability(written(tmp_path, text), options=ReadOptions(grace_s=120, gpus_per_node=4))
    assert {e.gpus_per_node for e in trace.events} == {4}
    assert {(e.kind, e.grace_s) for e in trace.events} == {(Change.ADD, 0), (Change.RECLAIM, 120)}


def test_a_later_line_replaces_repeated_samples(tmp_path):
    trace = read_availability(written(tmp_path, BAMBOO_COUNTS))
    assert trace.notes == ("2 repeated samples were replaced by later lines",)


def test_a_long_gap_between_samples_is_noted(tmp_path):
    text = "2021-12-10, 13:00:00, 4\n2021-12-10, 18:00:00, 2\n"
    assert read_availability(written(tmp_path, text)).notes == (
        "no samples for 5.0 h before line 2: 4 nodes are assumed throughout",
    )


WRONG = [
    (OWN.replace("60.5,reclaim,a", "60.5,reclaim,x"), 5, "node 'x' is reclaimed but is not there"),
    (OWN.replace("0.0,add,b", "0.0,add,a"), 4, "node 'a' arrives but is already there"),
    (OWN.replace("90.0,add", "30.0,add"), 6, "time goes back from 60.5 s to 30 s"),
    (OWN.replace("60.5,reclaim,a,1,30.0", "60.5,reclaim,a,2,30.0"), 5, "node 'a' leaves with 2 GPUs"),
    (OWN.replace("60.5,reclaim", "60.5,remove"), 5, "unknown event 'remove'; expected add, reclaim or end"),
    (OWN.replace("big,8", "big,0"), 6, "'gpus' is 0"),
    (OWN.replace("big,8,", "big,8"), 6, "4 columns"),
    (OWN.replace("big,8,", "big,8,5"), 6, "an arrival has a grace period"),
    (OWN.replace("120.0,end", "80.0,end"), 7, "'end' at 80 s lies before the last event at 90 s"),
    (OWN.replace("120.0,end,,,", "120.0,end,junk,3,9"), 7, "'end' names more than its time: '120.0,end,junk,3,9'"),
    (OWN.replace("120.0,end,,,", "120.0,end,,,0"), 7, "'end' names more than its time"),
    (OWN + "130.0,add,z,1,\n", 8, "a row after 'end'"),
    (OWN.replace("0.0,add,a", "nan,add,a"), 3, "'at_s' is 'nan'; expected a number from 0"),
    (OWN.replace("0.0,add,a", "-5,add,a"), 3, "'at_s' is '-5'"),
    (PARCAE.replace('"no-op"', '"noop"'), 2, "unknown event 'noop'"),
    (PARCAE.replace('["n0"]', '["n9"]'), 3, "node 'n9' is reclaimed but is not there"),
    (PARCAE.replace("[60000", "[NaN"), 2, "NaN is not a number of JSON"),
    (PARCAE.replace("60000, ", "316224000000, "), 2, "the trace is longer than ten years"),
    (PARCAE.replace('"n0"', '"n\\ud800"'), 1, "'nodes' holds something that is not a name"),
    (PARCAE[:150], 3, "not valid JSON"),
    (PARCAE.replace("[120000", "[12000"), 3, "time goes back from 60000 ms to 12000 ms"),
    (BAMBOO_EVENTS.replace("remove,node1", "remove,node7"), 3, "node 'node7' is reclaimed but is not there"),
    (BAMBOO_EVENTS + "90000,drop,node2", 5, "unknown event '90000,drop,node2'"),
    (BAMBOO_COUNTS.replace("13:03:00, 3", "13:03:61, 3"), 5, "not a date and time: '2021-12-10 13:03:61'"),
    (BAMBOO_COUNTS.replace("13:03:00, 3", "11:03:00, 3"), 5, "time goes back"),
    (BAMBOO_COUNTS.replace("13:03:00, 3", "13:03:00, x"), 5, "the count is 'x'"),
    (SKYPILOT.replace("300", "0"), 1, "'metadata.gap_seconds' is 0"),
    (SKYPILOT.replace("[0, 2", "[0, 2.5"), 1, "'data[1]' is 2.5; expected a whole number"),
    (SKYPILOT.replace("[0, 2", "[0, true"), 1, "'data[1]' is True"),
    (SKYPILOT.replace("[0, 2", "[0, 99999999"), 1, "expected 0 to 65536"),
    (SKYPILOT.replace('"data": [0, 2, 2, 1]', '"data": []'), 1, "'data' is empty"),
    ("hello\n", 1, "no known trace format begins like this"),
    ("\n# only a comment\n", 1, "the file is empty"),
    (b"at_s,event\n\xff\xfe", 2, "not UTF-8 text"),
]


@pytest.mark.parametrize(("text", "line", "message"), WRONG)
def test_faults_name_file_and_line(tmp_path, text, line, message):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_availability(path)
    (fault,) = caught.value.faults
    assert fault.span is not None
    assert (fault.span.file, fault.span.line) == (str(path), line)
    assert message in str(fault)


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nowhere"):
        read_availability(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"cannot read .*Is a directory"):
        read_availability(tmp_path)
    with pytest.raises(InputError, match=r"unknown trace format 'xml'.*known: csv, parcae"):
        read_availability(written(tmp_path, OWN), format_name="xml")


def test_the_wrong_kind_of_trace_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a trace of availability; expected one of kv-table"):
        read_agents(written(tmp_path, OWN))
    with pytest.raises(InputError, match="is a trace of agents; expected one of csv"):
        read_availability(written(tmp_path, AGENTS["azure"]))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public traces are not here")
@pytest.mark.parametrize(
    ("name", "hours", "mean", "low", "high"),
    [
        ("parcae/trace_hh_55_65.txt", 1.0, 27.4833, 20, 32),
        ("parcae/trace_ll_10_11.txt", 1.0, 14.6333, 14, 18),
        ("bamboo/g4dn-trace.csv", 10.7667, 12.6022, 0, 24),
        ("bamboo/p3-trace.csv", 11.3667, 24.0279, 10, 32),
        ("bamboo/a100x1-east1b.txt", 27.0183, 57.3031, 17, 64),
        ("bamboo/v100x1-east1c.txt", 24.1703, 76.3265, 30, 80),
    ],
)
def test_public_traces(name, hours, mean, low, high):
    trace = read_availability(SHARED / "availability" / name)
    statistics = trace.statistics()
    assert trace.horizon_s / 3600 == pytest.approx(hours, abs=1e-3)
    assert statistics.mean_gpus == pytest.approx(mean, abs=1e-3)
    assert (statistics.min_gpus, statistics.max_gpus) == (low, high)
