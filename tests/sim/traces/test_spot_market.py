import math
from statistics import fmean, stdev

import pytest

from pearl.errors import InputError
from pearl.sim.traces.availability import Change
from pearl.sim.traces.generator import SpotMarket, generate, oscillate


def market(**changes):
    return SpotMarket(**({"max_nodes": 20, "abundance": 0.7, "changes_per_h": 10, "horizon_s": 7200} | changes))


def test_the_same_seed_gives_the_same_trace():
    assert generate(market(), seed=3) == generate(market(), seed=3)
    assert generate(market(), seed=3).events != generate(market(), seed=4).events


@pytest.mark.parametrize("abundance", [0.2, 0.5, 0.9])
@pytest.mark.parametrize(("changes_per_h", "burst"), [(2, 0.5), (12, 0.15), (40, 0.05)])
def test_abundance_and_change_rate_hold_on_average(abundance, changes_per_h, burst):
    wanted = market(abundance=abundance, changes_per_h=changes_per_h, burst=burst)
    seen = [generate(wanted, seed=seed).statistics(20) for seed in range(60)]
    for values, expected in (
        ([s.abundance for s in seen], abundance),
        ([s.changes_per_h for s in seen], changes_per_h),
    ):
        standard_error = stdev(values) / math.sqrt(len(values))
        assert abs(fmean(values) - expected) < 4 * standard_error
        assert standard_error < 0.1 * expected


def test_nodes_never_exceed_the_maximum_and_names_are_never_reused():
    trace = generate(market(changes_per_h=60, burst=1.0), seed=0)
    arrivals = [node for e in trace.events if e.kind is Change.ADD for node in e.nodes]
    assert len(arrivals) == len(set(arrivals))
    assert max(gpus for _, gpus in trace.counts()) <= 20


def test_a_still_market_never_changes():
    assert len(generate(market(changes_per_h=0, abundance=1), seed=0).events) == 1
    assert generate(market(changes_per_h=0, abundance=0), seed=0).events == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"abundance": 1.2}, "abundance is 1.2; expected 0 to 1"),
        ({"abundance": math.nan}, "abundance is nan"),
        ({"abundance": 1.0}, "never changes"),
        ({"max_nodes": 0}, "max_nodes is 0"),
        ({"max_nodes": 10**400}, "max_nodes is a huge number; expected 1 to 65536"),
        ({"burst": 0}, "burst is 0"),
        ({"changes_per_h": -1}, "changes_per_h is -1"),
        ({"horizon_s": 0}, "horizon_s is 0"),
        ({"abundance": 1e-300}, "draws of nodes"),
        ({"horizon_s": 31_000_000.0, "changes_per_h": 3600}, "draws of nodes"),
    ],
)
def test_parameters_that_no_trace_can_meet_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        generate(market(**change), seed=0)


def test_oscillation_is_a_square_wave():
    trace = oscillate(low_nodes=2, high_nodes=6, period_s=600, horizon_s=1500, gpus_per_node=2)
    assert trace.counts() == ((0.0, 12), (300, 4), (600, 12), (900, 4), (1200, 12))
    assert trace.horizon_s == 1500


@pytest.mark.parametrize(
    ("low", "high", "period_s", "horizon_s"),
    [(5, 5, 60, 600), (-1, 5, 60, 600), (0, 5, 0, 600), (0, 5, 60, -1), (0, 60_000, 1, 1e6)],
)
def test_waves_out_of_range_are_refused(low, high, period_s, horizon_s):
    with pytest.raises(InputError, match=r"expected|must be"):
        oscillate(low_nodes=low, high_nodes=high, period_s=period_s, horizon_s=horizon_s)
