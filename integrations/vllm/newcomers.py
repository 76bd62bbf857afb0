"""New jobs in line to be let in, and how many turns of other jobs go before the first of them."""

from __future__ import annotations

from .jobs import Turn


class Newcomers:
    """First turns that wait, in order of arrival; every operation is O(1)."""

    def __init__(self) -> None:
        self._waiting: dict[str, Turn] = {}
        self._num_passes = 0

    def begin(self, turn: Turn) -> None:
        """A turn that opens its job arrives and waits from now on."""
        if not self._waiting:
            self._num_passes = 0
        self._waiting[turn.request_id] = turn

    def let_in(self, turn: Turn) -> None:
        """It has its blocks."""
        if self._waiting.pop(turn.request_id, None) is not None:
            self._num_passes = 0

    def left(self, turn: Turn) -> None:
        """It is over, without blocks or with them."""
        self._waiting.pop(turn.request_id, None)

    def passed(self, most: float) -> Turn | None:
        """A turn of a job that is there has its blocks; the first in line, if that makes it more
        than `most` of them since a job was let in, and the count begins anew."""
        if not self._waiting:
            return None
        self._num_passes += 1
        if self._num_passes <= most:
            return None
        self._num_passes = 0
        return next(iter(self._waiting.values()))
