import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.core.distribution import Distribution
from pearl.documents import parse_document, validate
from pearl.errors import InputError
from pearl.scenario.schema import WorkloadSpec
from pearl.sim.traces.agents import MAX_TOOL_WAIT_S, assemble, grow, observe, replay, workload
from pearl.sim.traces.fits import Shape
from pearl.sim.traces.formats import read_agents
from pearl.sim.traces.workload_text import workload_text
from pearl.sim.trajectories import Turn, context_tokens
from tests.sim.traces.trace_samples import AGENTS, KV_SESSION, KV_TABLE, MOONCAKE, SHARED, SWE_AGENT


def read(tmp_path, text):
    path = tmp_path / "trace"
    path.write_text(text)
    return read_agents(path)


def turns(trace):
    return {
        t.id: [(turn.new_prompt_tokens, turn.output_tokens, turn.environment_s) for turn in t.turns]
        for t in trace.trajectories
    }


def test_kv_table_counts_what_is_new_to_the_context(tmp_path):
    trace = read(tmp_path, KV_TABLE)
    # t1: 1200 - 1000 - 50 and 1400 - 1200 - 40 tokens are new; the wait of 500 s was a person's: the median, 4 s
    assert turns(trace) == {
        "t1": [(1000, 50, 4.0), (150, 40, 4.0), (160, 30, 0.0)],
        "t2": [(900, 10, 0.0)],
        "t2#1": [(400, 20, 0.0)],
    }
    assert trace.notes[0] == "1 compacted or replaced contexts begin a trajectory of their own"


def test_kv_session_gives_sub_agents_their_own_trajectory(tmp_path):
    assert turns(read(tmp_path, KV_SESSION)) == {"s": [(100, 20, 7.0), (30, 10, 0.0)], "s/1": [(70, 5, 0.0)]}


def test_mooncake_sessions_follow_shared_prefixes(tmp_path):
    # the third request continues the first; the fourth claims the same prefix and is a fork; the second shares only
    # the system prompt
    assert turns(read(tmp_path, MOONCAKE)) == {
        "session-0": [(1200, 100, 0.0), (800, 50, 0.0)],
        "session-1": [(1100, 10, 0.0)],
        "session-2": [(1600, 60, 0.0)],
    }


def test_azure_requests_are_single_turns(tmp_path):
    trace = read(tmp_path, AGENTS["azure"])
    assert [t.turns[0].new_prompt_tokens for t in trace.trajectories] == [4808, 110]
    assert workload(trace, trajectories=8).turns == Distribution.constant(1.0)


def test_swe_agent_tokens_are_estimated_from_characters(tmp_path):
    assert turns(read(tmp_path, SWE_AGENT)) == {"trajectory": [(100, 3, 0.25), (100, 1, 0.0)]}


WRONG = [
    (KV_TABLE.replace("t1,1,", "t1,2,"), 3, "turn 2 of 't1'; expected turn 1, in order"),
    (KV_TABLE.replace("4.0,1", "4.0,yes"), 3, "'gap_is_tool' is 'yes'"),
    (KV_TABLE.replace("1200,250", "1200"), 3, "7 columns"),
    (KV_TABLE.splitlines()[0] + "\n", 1, "no requests after the header"),
    (KV_SESSION.replace('"in": 150', '"in": "many"'), 1, "'in' in requests[2] of s is 'many'"),
    (KV_SESSION.replace('[{"t": 1.0, "type": "n"', '[{"t": 1.0, "type": "subagent"'), 1, "sub-agent of a sub-agent"),
    (KV_SESSION.replace('"requests": [{"t": 1.0', '"requests": 5, "r": [{"t": 1.0'), 1, "'requests' of s/1 is 5"),
    (KV_SESSION[:-30], 1, "not valid JSON"),
    (
        KV_SESSION.replace('"requests"', '"Requests"', 1).replace('"block_size"', '"requests": [], "block_size"'),
        1,
        "empty",
    ),
    (MOONCAKE.replace('"input_length": 2100', '"input_length": -1'), 3, "'input_length' is -1"),
    (MOONCAKE.replace("[0, 1, 3, 6, 9]", "7"), 3, "'hash_ids' is 7; expected a JSON array"),
    (AGENTS["azure"].replace("110,27", "110,2.5"), 3, "'GeneratedTokens' is '2.5'; expected a whole number"),
    (SWE_AGENT.replace("0.25", "null"), 1, "'execution_time' in trajectory[0] is missing"),
    (SWE_AGENT.replace('"look around"', "5", 1), 1, "'response' in trajectory[0] is not text"),
    (SWE_AGENT.replace('"look around",', '"look around"', 1), 5, "not valid JSON"),
]


@pytest.mark.parametrize(("text", "line", "message"), WRONG)
def test_faults_name_file_and_line(tmp_path, text, line, message):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    (fault,) = caught.value.faults
    assert fault.span is not None
    assert (fault.span.file, fault.span.line) == (str(tmp_path / "trace"), line)
    assert message in str(fault)


def test_dropped_reasoning_is_prefilled_again():
    assert grow([(1000, 300, None), (1100, 10, None)]) == [[(1000, 300, None), (100, 10, None)]]


contexts = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 500), st.none() | st.floats(0, 2 * MAX_TOOL_WAIT_S)),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(rows=contexts)
def test_no_turn_is_lost_and_all_counts_are_positive(rows):
    trace = assemble(source="t", sessions=[(str(i), part) for i, part in enumerate(grow(rows))])
    all_turns = [turn for t in trace.trajectories for turn in t.turns]
    assert len(all_turns) == len(rows)
    assert all(turn.new_prompt_tokens >= 1 and turn.output_tokens >= 1 for turn in all_turns)
    assert all(0 <= turn.environment_s <= MAX_TOOL_WAIT_S for turn in all_turns)
    assert [turn.output_tokens for turn in all_turns] == [max(out, 1) for _, out, _ in rows]


@settings(deadline=None)
@given(rows=contexts, limit=st.integers(2, 8000))
def test_replay_fits_the_limit_and_ends_nothing_early(rows, limit):
    trace = assemble(source="t", sessions=[(str(i), part) for i, part in enumerate(grow(rows))])
    full = [t for t in replay(trace) if t[0].new_prompt_tokens < limit]
    cut = replay(trace, max_context_tokens=limit)
    assert len(cut) == len(full)
    for short, long in zip(cut, full, strict=True):
        assert context_tokens(short) <= limit
        assert short[:-1] == long[: len(short) - 1]
        if context_tokens(long) <= limit:
            assert short == long
        else:
            assert short[-1].output_tokens >= 1
            assert context_tokens(long[: len(short) + 1]) >= limit


def test_replay_gives_the_turns_of_the_simulator(tmp_path):
    (first, *_) = replay(read(tmp_path, KV_TABLE))
    assert first[1] == Turn(new_prompt_tokens=150, output_tokens=40, environment_s=4.0)


def test_a_limit_below_every_first_prompt_is_refused(tmp_path):
    with pytest.raises(InputError, match="no trajectory has a first prompt below 300 tokens"):
        workload(read(tmp_path, KV_TABLE), trajectories=1, max_context_tokens=300)


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("name", AGENTS)
def test_workload_text_is_a_scenario_section(tmp_path, shape, name):
    wanted = workload(read(tmp_path, AGENTS[name]), trajectories=48, shape=shape)
    document = parse_document(workload_text(wanted), file="w.yaml")
    body = json.loads(json.dumps(document.data["workload"]))
    section = parse_document(json.dumps(body), file="w.yaml")
    spec = validate(WorkloadSpec, section)
    assert (spec.trajectories, spec.max_context_tokens) == (48, wanted.max_context_tokens)
    for field in ("turns", "first_prompt_tokens", "new_prompt_tokens", "output_tokens"):
        read_back = getattr(spec, field).build()
        assert read_back.expected == pytest.approx(getattr(wanted, field).expected, rel=1e-4)
    assert spec.environment.build().expected == pytest.approx(wanted.environment_s.expected, rel=1e-4, abs=1e-9)


@pytest.fixture(scope="module")
def coding_agent():
    if not SHARED.is_dir():
        pytest.skip("the public traces are not here")
    return read_agents(SHARED / "agent-turns/kv_cache_tester/agent_turns.derived.csv")


def test_public_coding_agent_trace(coding_agent):
    seen = observe(coding_agent)
    assert len(coding_agent.trajectories) == 710 + 474
    assert sum(seen.turns) == 48_658
    assert sorted(seen.environment_s)[len(seen.environment_s) // 2] == 8.0
    fitted = workload(coding_agent, trajectories=64, max_context_tokens=32_768)
    assert fitted.output_tokens.expected == pytest.approx(343.7, abs=0.1)
    assert fitted.environment_s.expected == pytest.approx(20.2, abs=0.1)


def test_session_json_and_table_agree(coding_agent):
    session = turns(read_agents(SHARED / "agent-turns/kv_cache_tester/trace_0012.json"))
    assert session["trace_0012"] == turns(coding_agent)["trace_0012"]


def test_a_replaced_context_begins_a_trajectory_of_its_own(tmp_path):
    trace = read(tmp_path, KV_TABLE.replace("t1,1,1200,", "t1,1,40000,").replace("t1,2,1400,", "t1,2,40500,"))
    assert turns(trace)["t1"] == [(1000, 50, 0.0)]
    assert turns(trace)["t1#1"][1] == (460, 30, 0.0)


def test_the_turn_that_reaches_the_limit_counts_whole(tmp_path):
    # t1 reaches 1100 tokens within the prompt of its second turn, which a replay has to leave out
    fitted = workload(read(tmp_path, KV_TABLE), trajectories=1, max_context_tokens=1100)
    assert fitted.new_prompt_tokens == Distribution.constant(150.0)
    assert sorted(fitted.turns.values) == [1, 1, 3]
