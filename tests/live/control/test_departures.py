from __future__ import annotations

from pearl.live.control.departures import Backoff


def test_pauses_double_up_to_a_limit_and_begin_anew_after_a_long_run() -> None:
    backoff = Backoff(first_s=5.0, longest_s=30.0)
    pauses, at_s = [], 0.0
    for _ in range(5):
        pauses.append(backoff.pause_s("w", now_s=at_s))
        at_s += pauses[-1] + 1.0
    assert pauses == [5.0, 10.0, 20.0, 30.0, 30.0]
    assert backoff.pause_s("other", now_s=at_s) == 5.0
    assert backoff.pause_s("w", now_s=at_s) == 30.0
    assert backoff.pause_s("w", now_s=at_s + 60.0) == 30.0
    assert backoff.pause_s("w", now_s=at_s + 121.0) == 5.0


def test_a_worker_that_fails_for_weeks_is_tried_for_ever() -> None:
    backoff = Backoff(first_s=5.0, longest_s=300.0)
    assert [backoff.pause_s("w", now_s=300.0 * number) for number in range(2000)][-1] == 300.0
