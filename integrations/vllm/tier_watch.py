"""Learns what a KV connector gives back of contexts that had left the GPU, and how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable

MIN_EVENTS = 8
"""Loads and losses seen before anything is said."""
MEMORY = 64.0
"""Loads and losses that count, about: each one before counts by 1/64 less."""


class TierWatch:
    """Follows the loads of one engine, times in seconds on `clock`.

    Of a context that had left the GPU some is loaded; the rest is lost, and computed anew. Without
    a connector nothing is ever loaded. O(1), but for the loads under way.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._loading: dict[str, tuple[int, float]] = {}
        self._num_events = 0
        self._loaded_tokens = self._load_s = self._lost_tokens = 0.0

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def load_began(self, request_id: str, num_tokens: int) -> None:
        """A request has its blocks; so many tokens are to be loaded into them."""
        self._loading[request_id] = (num_tokens, self._clock())

    def loads_done(self, request_ids: Iterable[str]) -> float:
        """Whatever these had to load is on the GPU; returns the token-seconds of memory in which it
        was waited for."""
        waited_token_s = 0.0
        for request_id in request_ids:
            if request_id in self._loading:
                num_tokens, began_s = self._loading.pop(request_id)
                load_s = self._clock() - began_s
                self._age()
                self._loaded_tokens += num_tokens
                self._load_s += load_s
                waited_token_s += num_tokens * load_s
        return waited_token_s

    def lost(self, num_tokens: int) -> None:
        """A turn computes so many tokens of its job's context anew."""
        self._age()
        self._lost_tokens += num_tokens

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._loading.pop(request_id, None)

    @property
    def loaded_share(self) -> float:
        """Of the tokens that had left the GPU the share that was loaded, from 0 to 1."""
        if self._num_events < MIN_EVENTS:
            return 0.0
        return self._loaded_tokens / (self._loaded_tokens + self._lost_tokens)

    @property
    def load_token_s(self) -> float:
        """Seconds that a loaded token was waited for; 0 if none was."""
        return self._load_s / self._loaded_tokens if self._loaded_tokens else 0.0

    def _age(self) -> None:
        self._num_events += 1
        kept = 1.0 - 1.0 / MEMORY
        self._loaded_tokens *= kept
        self._load_s *= kept
        self._lost_tokens *= kept
