"""The engine's stretches, shortened stretches and events against a simulator that takes one step at a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.core.cluster import Counts
from pearl.sim.batch import simulate_batch
from tests.sim.sim_samples import batches, tight_profiles, workload
from tests.sim.stepwise import Stepwise


def assert_agree(batch, profile, counts: Counts) -> None:
    fast = simulate_batch(workload(), profile, counts=counts, seed=0, trajectories=batch)
    slow = Stepwise(batch, profile, colocated=counts.colocated, prefill=counts.prefill, decode=counts.decode).run()
    assert fast.finish_s == pytest.approx([seq.finish_s for seq in slow.seqs], rel=1e-9)
    assert fast.tally.preemptions == slow.preemptions
    assert fast.tally.hit_tokens == slow.hits
    assert fast.tally.decode_steps == slow.decode_steps


@pytest.mark.slow
@given(batch=batches, profile=tight_profiles, workers=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_colocated(batch, profile, workers):
    assert_agree(batch, profile, Counts(colocated=workers))


@pytest.mark.slow
@given(batch=batches, profile=tight_profiles)
@settings(max_examples=25, deadline=None)
def test_disaggregated(batch, profile):
    assert_agree(batch, profile, Counts(prefill=1, decode=1))
