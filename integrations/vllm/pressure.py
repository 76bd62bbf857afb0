"""Whether memory is contended; while it is not, the policy leaves all as stock has it."""

from __future__ import annotations

import math


class Pressure:
    """On from the first allocation that fails until none has failed for some time."""

    def __init__(self) -> None:
        self._until_s = -math.inf
        self._has_risen = False
        self.is_on = False

    def rise(self, now_s: float, lasting_s: float) -> bool:
        """Memory ran short: on for `lasting_s` from now; True if it was off."""
        self._until_s = max(self._until_s, now_s + lasting_s)
        self._has_risen = True
        was_on, self.is_on = self.is_on, True
        return not was_on

    def fall(self, now_s: float) -> bool:
        """Off if its time is over and no allocation has failed since this was asked last, however
        short that time is; True if it was on. Asked once a step."""
        has_risen, self._has_risen = self._has_risen, False
        if has_risen or not self.is_on or now_s < self._until_s:
            return False
        self.is_on = False
        return True
