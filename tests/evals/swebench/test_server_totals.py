"""Facts about what a run added to its server's totals."""

from __future__ import annotations

from agentkv.evals.swebench.server_totals import added_totals, summed_totals

BEFORE = {"pins_total": {"fast": 2}, "preemptions_total": 5, "pinned_jobs": 3}
AFTER = {"pins_total": {"fast": 6, "slow": 1}, "preemptions_total": 9, "pinned_jobs": 0}


def test_only_what_was_added_counts() -> None:
    """A server may have served others before; gauges are no totals."""
    assert added_totals(BEFORE, AFTER) == {
        "pins_total": {"fast": 4, "slow": 1},
        "preemptions_total": 4,
    }


def test_a_fresh_server_began_at_nothing() -> None:
    """Without a reading before, all of it is the run's."""
    assert added_totals(None, AFTER) == {
        "pins_total": {"fast": 6, "slow": 1},
        "preemptions_total": 9,
    }


def test_a_server_that_tells_nothing() -> None:
    """A stock policy has no totals: that is not the same as none."""
    assert added_totals(None, None) is None
    assert summed_totals(None, None) is None


def test_sessions_add_up() -> None:
    """A run that was gone on with on another server."""
    first = {"pins_total": {"fast": 1}, "preemptions_total": 1}
    second = {"pins_total": {"fast": 2, "slow": 3}, "preemptions_total": 0}
    assert summed_totals(first, second) == {
        "pins_total": {"fast": 3, "slow": 3},
        "preemptions_total": 1,
    }
    assert summed_totals(first, None) == first


def test_a_server_that_was_started_again_counts_from_there() -> None:
    """Its totals are none to subtract from: one of them has fallen."""
    before = {"pins_total": {"fast": 2, "slow": 9}, "preemptions_total": 1}
    after = {"pins_total": {"fast": 4, "slow": 3}, "preemptions_total": 2, "pinned_jobs": 1}
    assert added_totals(before, after) == {
        "pins_total": {"fast": 4, "slow": 3},
        "preemptions_total": 2,
    }
