"""Random events with a tier, a short run of `python -m tests.soak.tier`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.soak.tier import Play, soak

NUM_EVENTS = 8_000


def test_nothing_leaks_and_nothing_mixes_between_pool_and_tier() -> None:
    """No block of the pool or tier is lost, none is read before it was written or for another one,
    and all requests end, with slow loads, loads that fail, preemptions, aborts and resets."""
    found = soak(NUM_EVENTS, seed=1)
    assert "trouble" not in found, found
    for kind in ("preemptions", "loads", "failed loads", "stores", "abort", "release", "reset"):
        assert found["counts"][kind] > 0, found


class MixedUp(dict[int, object]):
    """A tier that gives back what was stored last, wherever."""

    def __setitem__(self, chunk: int, held: object) -> None:
        super().__setitem__(0, held)

    def __getitem__(self, chunk: int) -> object:
        return super().__getitem__(0)


def lose_a_block(play: Play) -> None:
    play.engine.pool.get_new_blocks(1)


def lose_a_chunk(play: Play) -> None:
    play.engine.tier.manager._allocate_chunks([b"key"])


def mix_up_chunks(play: Play) -> None:
    play.engine.worker._tier = MixedUp()


@pytest.mark.parametrize(
    ("sabotage", "message"),
    [
        (lose_a_block, "blocks lost"),
        (lose_a_chunk, "chunks lost"),
        (mix_up_chunks, "reads|for block"),
    ],
)
def test_what_goes_wrong_is_found(sabotage: Callable[[Play], None], message: str) -> None:
    """A block or chunk that nobody holds, and one that holds something else."""
    play = Play("1/0")
    sabotage(play)
    with pytest.raises(AssertionError, match=message):
        play.play(NUM_EVENTS)
