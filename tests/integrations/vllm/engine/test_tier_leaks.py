"""Random events with a tier, a short run of `python -m tests.soak.tier`."""

from tests.soak.tier import soak

NUM_EVENTS = 8_000


def test_nothing_leaks_and_nothing_mixes_between_pool_and_tier() -> None:
    """No block of the pool or tier is lost, none is read before it was written or for another one,
    and all requests end, with slow loads, loads that fail, preemptions, aborts and resets."""
    found = soak(NUM_EVENTS, seed=1)
    assert "trouble" not in found, found
    for kind in ("preemptions", "loads", "failed loads", "stores", "abort", "release", "reset"):
        assert found["counts"][kind] > 0, found
