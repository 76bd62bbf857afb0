"""Whether memory is contended; while it is not, the policy leaves all as stock has it."""

from __future__ import annotations

import math


class Pressure:
    """On from the first allocation that fails until none has failed for some time."""

    def __init__(self) -> None:
        self._until_s = -math.inf
        self.is_on = False

    def rise(self, now_s: float, lasting_s: float) -> bool:
        """Memory ran short: on for `lasting_s` from now; True if it was off."""
        self._until_s = max(self._until_s, now_s + lasting_s)
        was_on, self.is_on = self.is_on, True
        return not was_on

    def fall(self, now_s: float) -> bool:
        """Off if its time is over; True if it was on."""
        if not self.is_on or now_s < self._until_s:
            return False
        self.is_on = False
        return True
