"""The cost of restoring a context whose KV has left the GPU, as policies see it."""

from __future__ import annotations

from typing import NamedTuple


class RestoreCost(NamedTuple):
    """Prices the restoring of one context."""

    num_tokens: float
    """Share of the pool that the context fills, in tokens."""
    compute_s: float
    """Seconds that recomputing it adds to the engine's steps."""
    load_s: float = 0.0
    """Seconds that loading it from a tier takes."""
    loaded_share: float = 0.0
    """Share of evicted context that a tier loads back; 0 without a tier."""
    compute_weight: float = 1.0
    """Seconds of the whole pool that a second of computing is worth (see StepTimeModel)."""
    step_s: float = 0.0
    """Fixed seconds of a step."""

    @property
    def alone_s(self) -> float:
        """Return the seconds to recompute the context in an otherwise idle engine."""
        return self.step_s + self.compute_s

    @property
    def pool_seconds(self) -> float:
        """Return the cost of recomputing the context, in seconds of the whole pool."""
        return self.compute_s * self.compute_weight
