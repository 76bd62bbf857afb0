"""Who waits to be let in, and how many turns that came later go before the first of them."""

from __future__ import annotations


class Newcomers:
    """Requests that open a job or have none, in order of arrival, until they have blocks.

    Every operation is O(1).
    """

    def __init__(self) -> None:
        self._orders: dict[str, int] = {}
        self._num_passes = 0

    def begin(self, request_id: str, order: int) -> None:
        """A request arrives, as number `order` of all, and waits from now on."""
        self._orders[request_id] = order

    def let_in(self, request_id: str) -> None:
        """It has its blocks."""
        if request_id == self._first:
            self._num_passes = 0
        self.left(request_id)

    def left(self, request_id: str) -> None:
        """It is over; if it has waited to the end, the next in line was passed over as often."""
        self._orders.pop(request_id, None)
        if not self._orders:
            self._num_passes = 0

    @property
    def _first(self) -> str | None:
        return next(iter(self._orders), None)

    def passed(self, order: int, most: float) -> str | None:
        """A turn of a job that is there has its blocks, and arrived as number `order`. The first in
        line, if more than `most` that came later have by now; then the count begins anew."""
        first = self._first
        if first is None or order < self._orders[first]:
            return None
        self._num_passes += 1
        if self._num_passes <= most:
            return None
        self._num_passes = 0
        return first
