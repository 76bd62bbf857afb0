"""What stock vLLM would have hit: its block pool, played with the same turns as the real one.

A watcher of all requests: on the main thread it notes what they do, O(1) each; a background thread
plays them: first come, first served, each as soon as its blocks fit, for as long as it really ran
and what it computes more or less takes. A later turn arrives as long after the one before as it
really did, and so does a job that takes the place of one that ended; other jobs, and requests
without one, when they did. So the ghost lags: it plays turns that have ended, as far as nothing
unknown can come before.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from math import inf
from typing import Any, NamedTuple

from agentkv.events import CacheReset, Closed, RequestAdmitted, RequestArrived, RequestEnded
from agentkv.protocol import JobKey

from ..retention import CacheGroup, Host, KVPool
from ..retention.background import BackgroundWorker
from ..retention.costs import RestoreCostModel

MAX_UNITS = 4096
"""Units of the ghost's pool, so that a turn takes under a millisecond: blocks, or several in a row
of a larger pool."""
MAX_JOBS = 10_000
"""Jobs whose last turn is known."""
MAX_UNPLAYED = 5000
"""Turns that are not played yet, of 32 KiB at most; beyond that new ones are left out."""
MAX_AHEAD_S = 60.0
"""The ghost waits for a job's next turn until this long after the end of the one before."""
SOON_S = 5.0
"""A new job takes the place of one that ended this long before at most, if it makes them as many as
they were: so do agents of a batch. Chosen."""
NUMBERS = 2**63 - 1
"""A unit is a number of these, so that its complement is none."""
NUM_ARRIVALS = 50
"""New jobs whose number at once is known."""


class Compared(NamedTuple):
    """A later turn that was played: what it found of its prompt, what it would have found under
    stock, and the seconds of engine time between the two."""

    job_id: JobKey
    prompt_tokens: int
    hit_tokens: int
    stock_hit_tokens: int
    engine_s: float


@dataclass(slots=True, eq=False)
class PlayedTurn:
    """A request, as it was and as it is played; a time not known yet is infinite."""

    jobs: tuple[JobKey, ...]
    """Its job, and the one that waits for that."""
    is_later: bool
    arrived_s: float
    after: PlayedTurn | None
    """The last turn of its job that had ended by then."""
    admitted_s: float = inf
    prompt_tokens: int = 0
    hit_tokens: int = 0
    ended_s: float = inf
    block_hashes: Sequence[Any] = ()
    num_tokens: int = 0
    units: array[int] | None = None
    """Of its prompt and reply, once it is known to have ended."""
    played_s: float = inf
    """When it ends as it is played."""
    is_over: bool = False
    """Its job is over."""
    followers: list[PlayedTurn] = field(default_factory=list)

    @property
    def lead_s(self) -> float:
        """By how much earlier than it really did it ends as it is played."""
        return self.ended_s - self.played_s

    @property
    def awaited_until_s(self) -> float:
        """How long its job's next turn may still come, or a job that takes its place."""
        return self.ended_s + (SOON_S if self.is_over else MAX_AHEAD_S)


class StockPool:
    """vLLM's block pool: what running requests hold, and the rest by last use.

    Where layers have a state or a window, `end_blocks` are those of one context, which its end
    stands for: a unit that is the complement of the context's last full one. A running request has
    as many next to its end, which vLLM lets go as soon as the prompt is computed.
    """

    def __init__(self, pool: KVPool, unit_tokens: int) -> None:
        groups = pool.groups or (CacheGroup(pool.block_tokens),)
        whole = [group for group in groups if group.most_blocks is None] or groups
        most_blocks = [group.most_blocks or 0 for group in groups if group not in whole]
        self.needs_end = 1 in most_blocks
        """A prefix hit takes the end, as of a state; those of windows are taken to be there."""
        self.end_blocks = sum(most_blocks)
        self._unit_blocks = sum(unit_tokens / group.block_tokens for group in whole)
        self._num_blocks = pool.num_blocks
        self.num_running = 0
        self.held: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self._num_idle_ends = 0

    def num_found(self, units: Sequence[int]) -> int:
        """Units at the start of a prompt that are in the cache, up to an end if it takes one."""
        held, idle = self.held, self.idle
        found = sum(1 for _ in takewhile(lambda unit: unit in held or unit in idle, units))
        while self.needs_end and found and ~units[found - 1] not in idle:
            found -= 1
        return found

    def has_room(self, units: Sequence[int]) -> bool:
        """Whether one more request with these units fits next to those that run."""
        new = sum(unit not in self.held for unit in units)
        return self._held_blocks(1, new) <= self._num_blocks

    def _held_blocks(self, more_running: int = 0, more_units: int = 0) -> float:
        num_units = len(self.held) + more_units
        return num_units * self._unit_blocks + (self.num_running + more_running) * self.end_blocks

    def hold(self, units: Sequence[int]) -> None:
        """Give them to a request; for want of room the least recently used others leave."""
        for unit in units:
            self.held[unit] = self.held.get(unit, 0) + 1
            self.idle.pop(unit, None)
        most = self._num_blocks - self._held_blocks()
        while self.idle and self._idle_blocks() > most:
            self._num_idle_ends -= self.idle.popitem(last=False)[0] < 0

    def _idle_blocks(self) -> float:
        num_units = len(self.idle) - self._num_idle_ends
        return num_units * self._unit_blocks + self._num_idle_ends * self.end_blocks

    def use_end(self, last_unit: int) -> None:
        """A request has found, or left, the end of a context with this last full unit."""
        if self.end_blocks:
            self._num_idle_ends += ~last_unit not in self.idle
            self.idle[~last_unit] = None
            self.idle.move_to_end(~last_unit)

    def let_go(self, units: Sequence[int]) -> None:
        """A request ends; its last unit is the first to be used again."""
        for unit in reversed(units):
            self.held[unit] -= 1
            if not self.held[unit]:
                del self.held[unit]
                self.idle[unit] = None

    def reset(self) -> None:
        """Forget all that no request holds."""
        self.idle.clear()
        self._num_idle_ends = 0


class StockGhost:
    """Plays the turns of one engine as vLLM's own scheduler would have run them."""

    def __init__(
        self, host: Host, costs: RestoreCostModel, worker: BackgroundWorker, max_running: int
    ) -> None:
        self.compared: deque[Compared] = deque(maxlen=MAX_JOBS)
        """What was played and is not counted yet."""
        self._host, self._costs, self._worker = host, costs, worker
        self._max_running = max_running
        self._unit_blocks = -(-host.pool.num_blocks // MAX_UNITS)
        self._unit_tokens = self._unit_blocks * host.pool.block_tokens
        # Of the main thread:
        self._flying: dict[str, PlayedTurn] = {}
        self._last: OrderedDict[JobKey, PlayedTurn] = OrderedDict()  # of each job, or one it awaits
        self._live: set[JobKey] = set()
        self._num_live: deque[int] = deque(maxlen=NUM_ARRIVALS)
        """Jobs at once, as new ones arrived."""
        self._over: deque[PlayedTurn] = deque(maxlen=NUM_ARRIVALS)
        """Last turns of jobs that are over, whose place none has taken."""
        # From it to the background thread:
        self._real_s = 0.0
        self._was_reset = False
        self._arrived: deque[PlayedTurn] = deque()
        self._ended: deque[PlayedTurn] = deque()
        # Of the background thread:
        self._pool = StockPool(host.pool, self._unit_tokens)
        self._num_unplayed = 0
        self._numbers = count()
        self._events: list[tuple[float, bool, int, PlayedTurn]] = []
        """Arrivals, and the ends of turns that run; of one millisecond ends come first."""
        self._waiting: deque[PlayedTurn] = deque()
        self._ahead: list[PlayedTurn] = []
        """Turns played to an end before they really ended, and that nothing follows yet."""
        self._lead_s = 0.0
        self.due_s = inf
        """When the first of them no longer keeps back what comes after it."""

    # What was: the main thread

    def on_cache_reset(self, event: CacheReset) -> None:
        self._was_reset = True

    def on_request_arrived(self, event: RequestArrived) -> None:
        turn = event.turn
        if self._num_unplayed > MAX_UNPLAYED:
            return
        jobs = [] if turn is None else filter(None, (turn.job, turn.job.lender))
        keys = tuple(job.job_id for job in jobs)
        is_later = turn is not None and turn.job.num_turns > 1 and not turn.is_side_request
        after = next(filter(None, map(self._last.get, keys)), None)
        if keys and keys[0] not in self._live:
            self._live.add(keys[0])
            after = after or self._place()
            self._num_live.append(len(self._live))
        played = PlayedTurn(keys, is_later, self._host.clock(), after)
        self._flying[event.request_id] = played
        self._arrived.append(played)

    def on_request_admitted(self, event: RequestAdmitted) -> None:
        turn = self._flying.get(event.request.request_id)
        if turn is not None and turn.admitted_s == inf:
            turn.admitted_s = self._host.clock()
            turn.prompt_tokens, turn.hit_tokens = event.request.num_prompt_tokens, event.hit_tokens

    def on_request_ended(self, event: RequestEnded) -> None:
        turn = self._flying.pop(event.request.request_id, None)
        if turn is None:
            return
        turn.ended_s = self._real_s = self._host.clock()
        turn.block_hashes, turn.num_tokens = event.request.block_hashes, event.num_tokens
        for job_id in turn.jobs:
            self._last[job_id] = turn
            self._last.move_to_end(job_id)
        while len(self._last) > MAX_JOBS:
            self._last.popitem(last=False)
        self._ended.append(turn)
        self._worker.do(self.play, can_wait=True)

    def play_if_due(self) -> None:
        """Go on though no turn ends, as in an idle engine. O(1) if nothing is due."""
        if self._host.clock() >= self.due_s:
            self.due_s, self._real_s = inf, self._host.clock()
            self._worker.do(self.play, can_wait=True)

    def on_closed(self, event: Closed) -> None:
        self._live.discard(event.job_id)
        turn = self._last.get(event.job_id)
        if turn is not None:
            turn.is_over = True
            self._over.append(turn)

    def _place(self) -> PlayedTurn | None:
        """The last turn of the job whose place a new one takes."""
        soon_s = self._host.clock() - SOON_S
        while self._over and self._over[0].ended_s < soon_s:
            self._over.popleft()
        if self._over and len(self._live) == max(self._num_live, default=0):
            return self._over.popleft()
        return None

    # What would have been: the background thread

    def play(self) -> None:
        """Play what is known and certain."""
        real_s = self._real_s  # before what arrives meanwhile
        if self._was_reset:
            self._was_reset = False
            self._pool.reset()
        while self._arrived:
            turn = self._arrived.popleft()
            self._num_unplayed += 1
            after, turn.after = turn.after, None
            if after is not None:
                after.followers.append(turn)
            if after is None or after.played_s < inf:
                self._arrives(turn, after)
        while self._ended:
            self._take_end(self._ended.popleft())
        self._ahead = [
            turn for turn in self._ahead if not turn.followers and real_s < turn.awaited_until_s
        ]
        self._lead_s = max((turn.lead_s for turn in self._ahead), default=0.0)
        while self._play_next(real_s - self._lead_s):
            pass
        waits = bool(self._events and self._ahead)
        self.due_s = min(turn.awaited_until_s for turn in self._ahead) if waits else inf
        if self.compared or waits:
            self._worker.wake()  # an idle engine counts nothing by itself, and sees no time pass

    def _take_end(self, turn: PlayedTurn) -> None:
        hashes = turn.block_hashes[self._unit_blocks - 1 :: self._unit_blocks]
        units = array("q", (hash(each) & NUMBERS for each in hashes))
        if turn.num_tokens > len(units) * self._unit_tokens:
            units.append(next(self._numbers))  # the last one, which is not full
        turn.units, turn.block_hashes = units, ()

    def _arrives(self, turn: PlayedTurn, after: PlayedTurn | None) -> None:
        self._at(turn.arrived_s - (0.0 if after is None else after.lead_s), True, turn)

    def _at(self, at_s: float, is_arrival: bool, turn: PlayedTurn) -> None:
        heapq.heappush(self._events, (round(at_s, 3), is_arrival, next(self._numbers), turn))

    def _play_next(self, certain_s: float) -> bool:
        """Play the next arrival or end; False if it lies later, or is of a turn under way."""
        if not self._events:
            return False
        at_s, is_arrival, _, turn = self._events[0]
        if at_s > certain_s or turn.units is None:
            return False
        heapq.heappop(self._events)
        if is_arrival and turn.admitted_s < inf:
            self._waiting.append(turn)
        else:
            self._end(turn, turn.units, at_s)
        while self._waiting and self._start(self._waiting[0], at_s):
            self._waiting.popleft()
        return True

    def _reserved(self, turn: PlayedTurn) -> slice:
        """The units that it holds all the time: of its prompt, and of half its reply."""
        return slice((turn.prompt_tokens // self._unit_tokens + len(turn.units or ()) + 1) // 2)

    def _start(self, turn: PlayedTurn, now_s: float) -> bool:
        """Let a turn run, if it fits."""
        assert turn.units is not None
        units, stock, pool = turn.units, self._pool, self._host.pool
        reserved = units[self._reserved(turn)]
        is_full = stock.num_running >= self._max_running or not stock.has_room(reserved)
        if is_full and stock.num_running:
            return False
        # vLLM computes at least the last token, and with EAGLE the last block of a hit, too
        most = (turn.prompt_tokens - 1) // pool.block_tokens * pool.block_tokens
        num_units = (most if stock.needs_end else turn.prompt_tokens) // self._unit_tokens
        num_found = stock.num_found(units[:num_units])
        dropped = pool.dropped_tokens
        hit_tokens = max(0, min(num_found * self._unit_tokens, most) - dropped)
        if num_found == turn.hit_tokens // self._unit_tokens:
            hit_tokens = turn.hit_tokens  # the same, to the block
        reload = self._costs.step_time.reload
        engine_s = reload.seconds(turn.hit_tokens) - reload.seconds(hit_tokens)
        if turn.is_later:
            found = turn.prompt_tokens, turn.hit_tokens, hit_tokens
            self.compared.append(Compared(turn.jobs[0], *found, engine_s))
        num_full = min(turn.num_tokens // self._unit_tokens, len(units))
        for number in filter(None, (num_found, num_full)):
            stock.use_end(units[number - 1])
        stock.num_running += 1
        stock.hold(reserved)
        ran_s = turn.ended_s - turn.admitted_s + engine_s
        self._at(now_s + max(0.0, ran_s), False, turn)
        return True

    def _end(self, turn: PlayedTurn, units: array[int], now_s: float) -> None:
        if turn.admitted_s < inf:  # else it was aborted before it ran
            self._pool.num_running -= 1
            self._pool.hold(units[self._reserved(turn).stop :])
            self._pool.let_go(units)
        self._num_unplayed -= 1
        turn.played_s, turn.units = now_s, None
        for follower in turn.followers:
            self._arrives(follower, turn)
        if turn.lead_s > 0 and turn.jobs and not turn.followers:
            self._ahead.append(turn)
            self._lead_s = max(self._lead_s, turn.lead_s)
