"""The number of jobs that are let in rises by steps, and is halved when the cache thrashes.

Source: CONCUR, also titled PACE (arXiv 2601.22705, ICML 2026, sections 4.2 and 4.3, as two notes
report them). Each interval: KV use under 0.2, the window grows by 2; use over 0.5 and a hit rate
under 0.2, it is halved; else it stays. Jobs beyond the window are held at the end of their turn;
the one that came last is held first. A turn that runs is never stopped.

Left open: the interval. Here it is 30 s, as in a reproduction (TobyMint/foyer), which collapses at
2 s; the window begins at 8 jobs. The hit rate is that of the interval, over returning turns only
(a first turn has nothing to hit); without one the window is not cut.
Not in it: hierarchical caches. KV is left to the cache.
"""

from __future__ import annotations

from pydantic import Field

from agentkv.policies import AdmissionRequest, Job, Policy, Settings, Turn


class ConcurSettings(Settings):
    interval_s: float = Field(30.0, gt=0)
    first_window: float = Field(8.0, ge=1)
    grow_by: float = Field(2.0, gt=0)
    cut_to: float = Field(0.5, gt=0, lt=1)
    low_use: float = Field(0.2, ge=0, le=1)
    high_use: float = Field(0.5, ge=0, le=1)
    low_hit_rate: float = Field(0.2, ge=0, le=1)
    force_resume_s: float = Field(1800.0, gt=0)
    """Seconds after which a held turn is let in all the same."""


class Concur(Policy):
    """Additive increase and multiplicative decrease of the jobs at work."""

    settings_class = ConcurSettings
    settings: ConcurSettings

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self.tick_s = self.settings.interval_s
        self.max_wait_s = self.settings.force_resume_s
        self.window = self.settings.first_window
        self._hit_tokens = self._possible_tokens = 0
        self._next_s: float | None = None

    def tick(self) -> bool:
        """Change the window by the interval that has passed; the first tick begins the first."""
        if self._next_s is not None and self.engine.now_s >= self._next_s:
            use = 1.0 - self.engine.num_free_blocks / self.engine.num_blocks
            self.window = self.next_window(use, self.hit_rate)
            self._hit_tokens = self._possible_tokens = 0
        self._next_s = self.engine.now_s + self.settings.interval_s
        return False

    @property
    def hit_rate(self) -> float | None:
        """Share of the contexts of returning turns that was found in the cache."""
        return self._hit_tokens / self._possible_tokens if self._possible_tokens else None

    def next_window(self, use: float, hit_rate: float | None) -> float:
        settings = self.settings
        if use < settings.low_use:
            return self.window + settings.grow_by
        if use > settings.high_use and hit_rate is not None and hit_rate < settings.low_hit_rate:
            return max(1.0, self.window * settings.cut_to)
        return self.window

    def num_before(self, job: Job) -> int:
        """Jobs at work that came before this one."""
        return sum(other.has_run and other.order < job.order for other in self.engine.jobs)

    def why_wait(self, turn: Turn) -> str | None:
        is_in = self.num_before(turn.job) < self.window
        return None if is_in else f"{self.window:.0f} jobs came before it"

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        num_jobs = sum(job.has_run for job in self.engine.jobs)
        return None if num_jobs < self.window else f"{num_jobs} jobs are at work"

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        if turn.common_tokens and turn.admitted_s is not None:
            self._possible_tokens += turn.common_tokens
            self._hit_tokens += min(turn.hit_tokens, turn.common_tokens)
