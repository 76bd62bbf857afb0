"""Who waits to be let in, and how many turns that came later go before the first of them."""

from __future__ import annotations

from collections import OrderedDict


class Newcomers:
    """Requests that open a job or have none: a line of those without blocks, in order of arrival,
    and those that are due, until they end. Every operation but `len` is O(1).
    """

    def __init__(self) -> None:
        self._orders: OrderedDict[str, int] = OrderedDict()
        self._due: set[str] = set()
        self._num_passes = 0

    def __len__(self) -> int:
        """How many are in line or due."""
        return len(self._orders.keys() | self._due)

    def begin(self, request_id: str, order: int) -> None:
        """A request arrives, as number `order` of all, and waits from now on."""
        self._orders[request_id] = order

    def order_of(self, request_id: str) -> int | None:
        """As number what it arrived; None if it is not in line."""
        return self._orders.get(request_id)

    def let_in(self, request_id: str) -> None:
        """It has its blocks."""
        if request_id == self._first:
            self._num_passes = 0
        self._leave_line(request_id)

    def ended(self, request_id: str) -> None:
        """It is over; if it has waited to the end, the next in line was passed over as often."""
        self._leave_line(request_id)
        self._due.discard(request_id)

    def _leave_line(self, request_id: str) -> None:
        self._orders.pop(request_id, None)
        if not self._orders:
            self._num_passes = 0

    @property
    def _first(self) -> str | None:
        return next(iter(self._orders), None)

    def passed(self, order: int, most: float) -> str | None:
        """Request number `order`, of a job that is there or of none, has its blocks. The first in
        line, if it is due from now on: more than `most` that came later went before it."""
        first = self._first
        if first is None or first in self._due or order <= self._orders[first]:
            return None
        self._num_passes += 1
        if self._num_passes <= most:
            return None
        self._due.add(first)
        return first

    def is_due(self, request_id: str) -> bool:
        """Whether it was passed over as often as one ever is; also once it has its blocks."""
        return request_id in self._due
