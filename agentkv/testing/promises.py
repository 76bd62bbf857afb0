"""The promises of a policy, as a state machine of hypothesis on vLLM's real scheduler.

`agentkv policy check` runs it; in tests of your own, `promises_of({"policy": "./mine.py:Mine"})`
is the machine, and its `TestCase` one for pytest. Needs hypothesis and vLLM. Time is virtual, but
for the seconds that an answer takes. Two engines play each schedule side by side: their answers
must be the same, and only an answer that is late in both counts as late.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import HealthCheck, Verbosity, seed
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, StopTest
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentkv.protocol import ToolEvent

from .policy_play import (
    COMMANDS,
    IN_TIME,
    JOBS,
    LAYERS,
    NUM_EVENTS,
    PROMISES,
    SAME,
    TIER_BYTES,
    PolicyPlay,
    breaking_off,
    difference,
    request_name,
)


class BrokenPromiseError(AssertionError):
    """A promise that was broken, how it showed, and the schedule that shows it, a line an event.

    Each promise has a subclass: hypothesis looks for the smallest example of each type of error.
    """

    def __init__(self, promise: str, what: str, schedule: tuple[str, ...]) -> None:
        super().__init__(f"{promise}? {what}")
        self.promise, self.what, self.schedule = promise, what, schedule

    @property
    def size(self) -> tuple[int, int]:
        """How much there is to read."""
        return len(self.schedule), sum(map(len, self.schedule))


_ERRORS = {promise: type("BrokenPromiseError", (BrokenPromiseError,), {}) for promise in PROMISES}


class _EnoughError(BaseException):
    """Ends hypothesis' search for smaller examples."""


@dataclass(slots=True)
class CheckResult:
    """What all schedules showed: the smallest example of each broken promise.

    `show` is called with the number of schedules played, and a text. From the first example on,
    smaller ones are looked for during `max_shrink_s`.
    """

    max_shrink_s: float = 30.0
    show: Callable[[int, str], None] = lambda completed, text: None
    broken: dict[str, BrokenPromiseError] = field(default_factory=dict)
    num_schedules: int = 0
    num_turns: int = 0
    num_answers: int = 0
    slowest_s: float = 0.0
    shrinks_until_s: float = math.inf

    def add(self, error: BrokenPromiseError) -> None:
        """Keep the smaller example."""
        known = self.broken.get(error.promise)
        if known is None or error.size < known.size:
            self.broken[error.promise] = error
        if self.shrinks_until_s == math.inf:
            self.shrinks_until_s = time.monotonic() + self.max_shrink_s

    def count(self, play: PolicyPlay, other: PolicyPlay) -> None:
        """Add up what one of the two plays of a schedule was asked."""
        self.num_schedules += 1
        self.num_turns += play.num_turns
        self.num_answers += len(play.answers)
        self.slowest_s = max(self.slowest_s, play.slowest_s, other.slowest_s)
        self.show(self.num_schedules, f"{self.num_schedules} schedules played")


def check_promises(
    settings: Mapping[str, Any],
    *,
    seed_number: int,
    num_schedules: int,
    max_hang_s: float = 1.0,
    max_shrink_s: float = 30.0,
    show: Callable[[int, str], None] = lambda completed, text: None,
) -> CheckResult:
    """Play schedules under the policy that the settings name, and make those that fail smaller.

    An answer that takes `max_hang_s` is broken off. The rest is said by CheckResult.
    """
    machine = promises_of(settings)
    machine.result = result = CheckResult(max_shrink_s, show)
    machine.max_hang_s = max_hang_s
    options = hypothesis_settings(
        machine.TestCase.settings, max_examples=num_schedules, verbosity=Verbosity.quiet
    )
    try:
        run_state_machine_as_test(seed(seed_number)(machine), settings=options)
    except (BrokenPromiseError, Flaky, _EnoughError):
        pass  # it is in the result
    except BaseExceptionGroup as group:  # several promises
        if (rest := group.split((BrokenPromiseError, Flaky))[1]) is not None:
            raise rest from None
    return result


def promises_of(settings: Mapping[str, Any]) -> type[PolicyMachine]:
    """The state machine for the policy that agentkv's settings name."""
    fields = {"agentkv_settings": dict(settings)}
    machine: Any = type("PolicyMachine", (PolicyMachine,), fields)
    machine.TestCase.settings = hypothesis_settings(
        stateful_step_count=NUM_EVENTS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    found: type[PolicyMachine] = machine
    return found


class PolicyMachine(RuleBasedStateMachine):
    """What agents do to an engine: a schedule, played on two engines at once."""

    agentkv_settings: ClassVar[Mapping[str, Any]]
    result: ClassVar[CheckResult | None] = None
    max_hang_s: ClassVar[float] = 1.0

    def __init__(self) -> None:
        super().__init__()
        self._schedule: list[str] = []
        self._plays: tuple[PolicyPlay, ...] = ()
        self._is_over = False
        if self.result is not None and time.monotonic() > self.result.shrinks_until_s:
            raise _EnoughError

    # Among the values that one is drawn from, the first is the simplest.

    clients: Bundle[str | None] = Bundle("clients")
    """Jobs of which a turn has arrived, and None for a request without a job."""

    @initialize(
        num_blocks=st.integers(0, 26).map(lambda fewer: 40 - fewer),
        max_num_seqs=st.sampled_from((4, 3, 2, 1)),
        max_num_batched_tokens=st.sampled_from((512, 64, 16)),
        is_async=st.booleans(),
        layers=st.sampled_from(("full", "tier", *LAYERS)),
    )
    def engine_starts(
        self,
        num_blocks: int = 40,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 512,
        is_async: bool = False,
        layers: str = "full",
    ) -> None:
        """A tiny pool of blocks of 16 tokens; a tier only where all layers have full attention."""
        has_tier = layers == "tier"
        tier = "a DRAM tier, " if has_tier else LAYERS.get(layers, ("", {}))[0]
        self._schedule.append(
            f"an engine of {num_blocks} blocks, {tier}{max_num_seqs} requests at once, "
            f"{max_num_batched_tokens} tokens a step, {'' if is_async else 'a'}sync scheduling"
        )
        shape = {
            "num_blocks": num_blocks,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "is_async": is_async,
            "offload_bytes": TIER_BYTES if has_tier else 0,
            **LAYERS.get(layers, ("", {}))[1],
        }
        self._plays = tuple(
            PolicyPlay(self.agentkv_settings, shape, self.max_hang_s) for _ in range(2)
        )
        self._judge()

    @rule(
        target=clients,
        job=st.sampled_from((*JOBS, None)),
        new_tokens=st.integers(1, 160),
        output_tokens=st.integers(1, 40),
        command=st.sampled_from((None, *COMMANDS)),
        is_last_step=st.sampled_from((False, False, False, True)),
    )
    def turn_arrives(
        self,
        job: str | None,
        new_tokens: int,
        output_tokens: int,
        command: str | None = None,
        is_last_step: bool = False,
    ) -> str | None:
        """A turn of a job arrives, its context continued; without a job, a plain request."""
        who = request_name(job)
        runs = "" if command is None else f", whose reply runs `{command}`"
        last = ", its last" if is_last_step else ""
        self._happens(
            f"{who} arrives{last}: {new_tokens} tokens, writes {output_tokens}{runs}",
            lambda play: play.arrive(job, new_tokens, output_tokens, command, is_last_step),
        )
        return job

    @precondition(lambda machine: machine.has_begun)
    @rule(seconds=st.sampled_from((1.0, 0.05, 0.3, 3.0, 30.0)))
    def time_passes(self, seconds: float) -> None:
        """The engine works, and idles if there is nothing to do."""
        self._happens(f"{seconds:g} s pass", lambda play: play.pass_time(seconds))

    @rule(job=clients.filter(bool), has_ended=st.booleans(), command=st.sampled_from(COMMANDS))
    def tool_is_reported(self, job: str, has_ended: bool, command: str) -> None:
        """The client of a job reports that a tool has started, or finished."""
        event = ToolEvent("finished" if has_ended else "started", command=command)
        self._happens(
            f"`{command}` of job {job} {'ends' if has_ended else 'starts'}",
            lambda play: play.retention.tool_signal(job, event),
        )

    @rule(job=clients)
    def newest_request_is_aborted(self, job: str | None) -> None:
        """The client gives up its newest turn."""
        self._happens(f"{request_name(job)}, the newest, is aborted", lambda play: play.abort(job))

    @rule(job=clients.filter(bool))
    def job_is_released(self, job: str) -> None:
        """The client says that a job is over."""
        self._happens(f"job {job} is released", lambda play: play.retention.release(job))

    @precondition(lambda machine: machine.has_begun)
    @rule(preempts_running=st.booleans())
    def prefix_cache_is_reset(self, preempts_running: bool) -> None:
        """Somebody calls vLLM's route for it."""
        more = ", and all turns" if preempts_running else ""
        self._happens(f"the prefix cache is reset{more}", lambda play: play.reset(preempts_running))

    @precondition(lambda machine: machine.has_begun)
    @rule()
    def new_jobs_rush(self) -> None:
        """New jobs arrive without a break until all turns that came before them have ended."""
        self._happens(
            "new jobs keep coming until all earlier turns have ended", lambda play: play.rush()
        )

    def teardown(self) -> None:
        """Nothing more arrives."""
        if not self._plays or isinstance(sys.exc_info()[1], StopTest):
            return  # hypothesis gives the schedule up, before its end
        if self.result is not None:
            self.result.count(*self._plays)
        if not self._is_over:
            self._each(lambda play: play.drain())

    @property
    def has_begun(self) -> bool:
        """True once a turn has arrived: before that nothing else can matter."""
        return len(self._schedule) > 1

    # What came of it

    def _happens(self, event: str, do: Callable[[PolicyPlay], Any]) -> None:
        if not self._is_over:
            self._schedule.append(event)
            self._each(do)

    def _each(self, do: Callable[[PolicyPlay], Any]) -> None:
        with breaking_off():
            for play in self._plays:
                do(play)
                play.check_blocks()
        self._judge()

    def _judge(self) -> None:
        """Raise BrokenPromiseError if both plays show it, or show something different."""
        one, other = self._plays
        late = [what for place, what in one.late.items() if place in other.late]
        found = one.breach or other.breach
        if late and not (one.breach and other.breach):
            found = IN_TIME, late[0]
        elif (what := difference(one, other)) is not None:
            found = SAME, what
        elif found is not None and not (one.breach and other.breach) and found[0] == IN_TIME:
            self._is_over, found = True, None  # the machine was busy
        if found is not None:
            self._is_over = True
            error = _ERRORS[found[0]](*found, tuple(self._schedule))
            if self.result is not None:
                self.result.add(error)
            raise error
