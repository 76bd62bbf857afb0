"""What a scheduling policy is asked, what it may answer, and the values it is shown.

A subclass of `Policy` overrides the questions that it answers in its own way; every default is
stock vLLM's behaviour. Rules are pure Python: no vLLM, no clock, no bookkeeping of blocks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL, ContinuumTTL

from .costs import RestoreCost
from .forecast import JobDemand, KVDemandForecast
from .jobs import Decision, Job, Turn
from .pins import Pin
from .settings import Settings

Rank = tuple[float, float, float]
"""A place in the queue, its tier first; the smallest is served first."""

PREEMPTED, PINNED, UNPINNED = 0, 1, 2
"""Tiers of the waiting queue. A request without a job is UNPINNED, and once preempted PREEMPTED."""


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """Describes an allocation that failed; `turn` is None for a request without a job."""

    turn: Turn | None
    has_blocks: bool
    """The request already holds blocks (running, or waiting after an external KV load), which
    cannot be reclaimed until it ends."""
    num_running: int
    """Requests that hold blocks, this one included if it does."""
    missing_blocks: int
    is_starved: bool = False
    """The request has been overtaken `max_overtakes` times."""
    common_blocks: int = 0
    """Blocks of the pin of the request's job that it will use: taking them frees nothing."""
    now_s: float = 0.0

    @property
    def runs_alone(self) -> bool:
        """Return whether no other request runs, whose end would make room."""
        return self.num_running <= (1 if self.has_blocks else 0)


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """Describes a new job that asks for memory, and the pool as it finds it."""

    num_blocks: int
    free_blocks: int
    newcomer: JobDemand
    forecast: KVDemandForecast
    """The jobs that hold memory now."""
    idle_kv_weight: float = 1.0
    """Share of pinned KV that counts (see IdleKVDiscount)."""
    turn: Turn | None = None
    """The new job's first turn; the scheduler always gives it."""


class Pressure:
    """Says whether memory is contended: from a failed allocation until none fails for a while.

    While it is off, policies that look at it leave everything as stock has it.
    """

    def __init__(self) -> None:
        self._until_s = -math.inf
        self._has_risen = False
        self.is_on = False

    def rise(self, now_s: float, lasting_s: float) -> bool:
        """Turn on for `lasting_s`, since an allocation has failed; return True if it was off."""
        self._until_s = max(self._until_s, now_s + lasting_s)
        self._has_risen = True
        was_on, self.is_on = self.is_on, True
        return not was_on

    def fall(self, now_s: float) -> bool:
        """Turn off once its time is over; return True if it was on. Called once a step.

        It outlives the step in which an allocation failed, however short its time is.
        """
        has_risen, self._has_risen = self._has_risen, False
        if has_risen or not self.is_on or now_s < self._until_s:
            return False
        self.is_on = False
        return True


@dataclass(frozen=True, slots=True)
class EngineView:
    """Shows the engine to a policy; each look is O(1) but for what is iterated."""

    clock: Callable[[], float]
    count_free_blocks: Callable[[], int]
    num_blocks: int
    """Blocks of the pool."""
    block_tokens: int
    jobs: Iterable[Job]
    """Jobs that are remembered, the longest idle first."""
    job: Callable[[str], Job | None]
    """Returns the job of this name, or None if it is not remembered."""
    turns: Collection[Turn]
    """Turns in the engine; `admitted_s` is None while one waits for its first blocks."""
    pins: Collection[Pin[Any]]
    """The KV that is pinned for jobs whose tool runs."""
    service: Mapping[str, float]
    """What each client (`Job.client`) was served: tokens computed of prompts, and twice those
    generated. A client that comes back is lifted to the least of those that have a request."""

    @property
    def now_s(self) -> float:
        """Seconds on a monotonic clock."""
        return self.clock()

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, cached prefixes among them."""
        return self.count_free_blocks()


class Policy:
    """Answers what becomes of the jobs of one engine. As it stands it is stock vLLM's behaviour.

    Every method runs on the engine's main thread, so it must answer within microseconds, and must
    depend on what it was shown only: the same events give the same answers. An exception, or an
    answer of another form, counts as a fault: stock's answer takes its place (see `guard`).

    Attributes:
        engine: The view of the engine; bound before any other method is called.
        pressure: Whether memory is contended (see `pressure_s`).
        learned: Tool durations, waits and lengths of jobs seen so far.
    """

    settings_class: type[Settings] = Settings
    """The settings that the policy takes; a subclass of Settings adds fields of its own."""

    uses_predictions = False
    """Replies are read, and `decide` gets a Prediction. If False, only clients name commands."""

    allows_partial_eviction = False
    """A pin that yields gives up only the blocks needed, the last first. If False, all of them."""

    starved_rank: Rank = (PREEMPTED - 1, 0, 0)
    """Place of a starved request (see `max_overtakes`), in the queue and among victims. Must sort
    before every answer of `rank` and `victim_rank`."""

    max_wait_s = 1800.0
    """Seconds after which a turn that `why_wait` holds back is let in all the same."""

    tick_s: float | None = None
    """Seconds between two calls of `tick`; None: never called."""

    engine: EngineView

    @functools.cached_property
    def has_admission_control(self) -> bool:
        """Return whether new jobs may have to wait: `why_hold_back` is overridden."""
        return type(self).why_hold_back is not Policy.why_hold_back

    @functools.cached_property
    def has_gate(self) -> bool:
        """Return whether returning turns may have to wait: `why_wait` is overridden."""
        return type(self).why_wait is not Policy.why_wait

    @functools.cached_property
    def holds_parts(self) -> bool:
        """Return whether a pin may hold a part of its turn only: `held_tokens` is overridden."""
        return type(self).held_tokens is not Policy.held_tokens

    @functools.cached_property
    def follows_turns(self) -> bool:
        """Return whether the rules follow the ends of turns: `turn_finished` is overridden."""
        return type(self).turn_finished is not Policy.turn_finished

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        """`settings` are of `settings_class`; `pool_tokens` is the size of the KV pool."""
        self.settings = settings
        self.pool_tokens = pool_tokens
        self.pressure = Pressure()
        self.learned = ContinuumTTL()

    def bind(self, engine: EngineView) -> None:
        """Show the policy its engine; called once, before anything is asked."""
        self.engine = engine

    def capped(self, seconds: float, reason: str) -> TTL:
        """Return a TTL of at most `max_ttl_s`."""
        return TTL(min(seconds, self.settings.max_ttl_s), reason)

    # How long a finished turn's KV is pinned

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        """Return the TTL of a turn that has just finished and whose tool is not known yet.

        0 frees the turn at once, and `decide` is then never asked about it: a policy that uses
        predictions must answer with the time that reading the reply may take.
        """
        return TTL(0.0, "stock frees a turn when it ends")

    def decide(
        self, command: str | None, cost: RestoreCost, prediction: Prediction | None = None
    ) -> Decision:
        """Decide about the pin of a turn that now runs `command` (None: no tool, or not known).

        A TTL of 0 frees it at once. `prediction` is None if `uses_predictions` is False; without a
        command it says when the next turn comes, if gaps of jobs that start alike tell that.
        """
        return Decision(self.undecided_ttl(cost), command)

    def held_tokens(self, cost: RestoreCost) -> float:
        """Return how many tokens a finished turn's pin keeps, from the first on; others are freed.

        Freed blocks stay in vLLM's cache until somebody takes them. All, and not asked, where the
        model has several groups of KV blocks.
        """
        return cost.num_tokens

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        """Return those of `pins`, newest job first, to give up until an allocation succeeds.

        Must be all of them, in any order, if `request.runs_alone`: nothing else could make room,
        and the engine would wait for ever.
        """
        return pins

    # Order: of waiting turns, and of running ones when one must be preempted

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """Return the place of a waiting turn; the smallest is served first.

        Requests without a job stand in tier UNPINNED by their arrival: a smaller tier for all turns
        of jobs would starve them. Must be unique to the turn, and may change only with the
        arguments, `pressure` and what `rank` itself has seen; `tick` may change it too if it
        answers True.
        """
        return (PREEMPTED if is_preempted else UNPINNED, turn.order, 0)

    def victim_rank(self, turn: Turn) -> Rank:
        """Return the place of a running turn when memory runs out; the largest is preempted first.

        Must stay the same while the turn runs. Asked only if `sorts_running`.
        """
        return (UNPINNED, turn.order, 0)

    def sorts_running(self) -> bool:
        """Return whether `victim_rank` decides who is preempted, or stock: the last admitted."""
        return False

    def max_overtakes(self, num_turns: float) -> float:
        """Return how many later turns may be served before a new job or a request without a job.

        `num_turns` is the expected number of turns, from first to last, of all jobs that run or
        are pinned, together.
        """
        return math.inf

    # Admission: of new jobs, and of turns that return

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        """Say why a new job is not admitted now; None admits it. Not asked while nothing runs."""
        return None

    def why_wait(self, turn: Turn) -> str | None:
        """Say why a turn that continues its job is not let in now; None lets it in.

        Asked when the turn is next in the queue; one that is held back stands behind all others and
        is asked about in each step. Not asked while nothing runs, of a turn that was let in before,
        or after `max_wait_s`.
        """
        return None

    def pressure_s(self, cost: RestoreCost) -> float:
        """Return for how long memory is contended after a context of this cost did not fit.

        For ever unless a policy says less: its rules then hold from the first shortage on.
        """
        return math.inf

    # What happens, for policies that keep state of their own

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        """Note that a turn has ended, or was aborted, `served_s` after it first had blocks.

        By then `context_tokens` and `finished_s` of its job are those that it left.
        """

    def job_ended(self, job: Job) -> None:
        """Drop what is known of a job that is over: released, at its last step, or forgotten."""

    def tick(self) -> bool:
        """Do what is due every `tick_s` seconds, before a step; True if ranks have changed."""
        return False
