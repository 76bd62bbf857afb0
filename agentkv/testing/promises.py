"""The promises of a policy, as a state machine of hypothesis on vLLM's real scheduler.

`agentkv policy check` runs it; in tests of your own, `promises_of({"policy": "./mine.py:Mine"})`
is the machine, and its `TestCase` one for pytest. Needs hypothesis and vLLM. Time is virtual, but
for the seconds that an answer takes. Two engines play each schedule side by side: their answers
must be the same, and only an answer that is late in both counts as late.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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

from agentkv.events import RulesFailed
from agentkv.guard import MAX_ANSWER_S, Fault, UnusableAnswerError
from agentkv.policies import Pin, Policy, Settings, load_policy
from agentkv.policies.answers import CHECKS
from agentkv.protocol import ToolEvent

from .stepped_engine import BLOCK_TOKENS, SteppedEngine, prompt_of

MAX_WAIT_S = 2000.0
"""Virtual seconds after which every turn must have had its first blocks: the 1800 s of
`Policy.max_wait_s`, and then its place in the queue. It must have ended after twice that."""
MAX_STEPS = 10_000
"""Steps in which all turns of a schedule must have ended once no more arrive."""
STEP_S = 0.01
RUSH_STEP_S = 4.0
"""Seconds of a step while there is a rush: so that MAX_WAIT_S pass in 500 steps."""
STUCK_S = 1.0
"""Seconds that pass in a step in which nothing could be scheduled."""
TIER_BYTES = 10_000_000
NUM_EVENTS = 20
"""Events of a schedule."""
JOBS = ("a", "b", "c", "d", "a.1")
"""Jobs of a schedule; "a.1" is a sub-agent of "a"."""
COMMANDS = ("ls -la", "pytest -q", "pip install torch", "frobnicate --all")

NO_LOSS = "no block is lost"
ENDS = "every turn ends"
YIELDS = "memory pressure always wins"
WAITS = f"nobody waits for more than {MAX_WAIT_S:.0f} s"
SAME = "the same events give the same answers"
IN_TIME = f"each answer comes within {1000 * MAX_ANSWER_S:.0f} ms"
USABLE = "each answer can be used"
PROMISES = (NO_LOSS, ENDS, YIELDS, WAITS, SAME, IN_TIME, USABLE)

QUESTIONS = ("bind", *CHECKS)
"""The methods that a policy is asked by."""


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


class NoAnswerInTimeError(Exception):
    """An answer was broken off."""


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

    def count(self, play: _Play, other: _Play) -> None:
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
        self._plays: tuple[_Play, ...] = ()
        self._is_over = False
        if self.result is not None and time.monotonic() > self.result.shrinks_until_s:
            raise _EnoughError

    # Among the values that one is drawn from, the first is the simplest.

    clients: Bundle[str | None] = Bundle("clients")
    """Jobs of which a turn has arrived, and None for a request without a job."""

    @initialize(
        num_blocks=st.integers(0, 26).map(lambda fewer: 40 - fewer),
        has_tier=st.booleans(),
        max_num_seqs=st.sampled_from((4, 3, 2, 1)),
        max_num_batched_tokens=st.sampled_from((512, 64, 16)),
        is_async=st.booleans(),
    )
    def engine_starts(
        self,
        num_blocks: int = 40,
        has_tier: bool = False,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 512,
        is_async: bool = False,
    ) -> None:
        """A tiny pool of blocks of 16 tokens."""
        tier = "a DRAM tier, " if has_tier else ""
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
        }
        self._plays = tuple(_Play(self.agentkv_settings, shape, self.max_hang_s) for _ in range(2))
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
        who = _request_of(job)
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
        self._happens(f"{_request_of(job)}, the newest, is aborted", lambda play: play.abort(job))

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

    def _happens(self, event: str, do: Callable[[_Play], Any]) -> None:
        if not self._is_over:
            self._schedule.append(event)
            self._each(do)

    def _each(self, do: Callable[[_Play], Any]) -> None:
        with _breaking_off():
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
        elif difference := _difference(one, other):
            found = SAME, difference
        elif found is not None and not (one.breach and other.breach) and found[0] == IN_TIME:
            self._is_over, found = True, None  # the machine was busy
        if found is not None:
            self._is_over = True
            error = _ERRORS[found[0]](*found, tuple(self._schedule))
            if self.result is not None:
                self.result.add(error)
            raise error


def _request_of(job: str | None) -> str:
    return "a request without a job" if job is None else f"a turn of job {job}"


def _difference(one: _Play, other: _Play) -> str | None:
    """The first answer that differs, in words; looked for from where the last search ended."""
    start = one.num_compared
    for number, (mine, its) in enumerate(
        zip(one.answers[start:], other.answers[start:], strict=False), start=start + 1
    ):
        if mine != its:
            again = f"{its[0]} -> {its[1]}"
            return f"answer {number}: {mine[0]} -> {mine[1]}, and when played again {again}"
        one.num_compared = number
    return None


@contextmanager
def _breaking_off() -> Iterator[None]:
    """Let an alarm break off what runs; a timer that ran before goes on after each answer."""

    def stop(*_: Any) -> None:
        raise NoAnswerInTimeError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


class _Play:
    """One engine under the policy, what it was asked, and what came of it."""

    def __init__(
        self, settings: Mapping[str, Any], shape: Mapping[str, Any], max_hang_s: float
    ) -> None:
        self.answers: list[tuple[str, str]] = []
        """Each question that was asked, and its answer."""
        self.num_compared = 0
        self.late: dict[int, str] = {}
        """Late answers in words, by the number of answers that came before them."""
        self.breach: tuple[str, str] | None = None
        """The first promise that was broken, and how it showed."""
        self.num_turns = 0
        self.slowest_s = 0.0
        self._max_hang_s = max_hang_s
        self._shape = shape
        self._step_s = STEP_S
        self._last_request: dict[str | None, Any] = {}
        """The newest request of each job."""
        self._live: dict[str, tuple[float, str]] = {}
        """Requests in the engine: when they arrived, and as what."""
        self._started: set[str] = set()
        self._num_rush_jobs = 0
        with _breaking_off():
            self._engine = SteppedEngine(policy_class=self._make_policy, **shape, **settings)
        self._scheduler = self._engine.scheduler
        self._scheduler.stream.add(self)
        self.retention = self._scheduler.retention
        predictor = self.retention.predictor.predictor
        for question in () if predictor is None else ("predict", "observe"):
            method = getattr(predictor, question)
            setattr(predictor, question, partial(self._broken_off, method))

    # The policy, and what it answers

    def _make_policy(self, settings: Settings, pool_tokens: int) -> Policy:
        try:
            made = load_policy(settings.policy)(settings, pool_tokens)
        except Exception as error:
            self._break(USABLE, f"it cannot be made: {type(error).__name__}: {error}")
            made = Policy(settings, pool_tokens)
        for question in QUESTIONS:
            setattr(made, question, partial(self._ask, question, getattr(made, question)))
        return made

    def _ask(self, question: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        began_s = time.perf_counter()
        try:
            answer = self._broken_off(method, *args, **options)
        except Exception as error:
            fault = Fault("policy", question, error, is_late=False, is_last=False)
            self.on_rules_failed(RulesFailed("policy", fault))
            raise
        finally:
            self.slowest_s = max(self.slowest_s, time.perf_counter() - began_s)
        self.answers.append((question, _shown(answer)))
        return answer

    def _broken_off(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        # Again and again: an exception in a callback of the garbage collector would be passed over.
        before = signal.setitimer(signal.ITIMER_REAL, self._max_hang_s, self._max_hang_s)
        try:
            return method(*args, **options)
        finally:
            signal.setitimer(signal.ITIMER_REAL, *before)

    def on_rules_failed(self, event: RulesFailed) -> None:
        """A watcher of the engine, called by the guards."""
        fault = event.fault
        error, question = fault.error, fault.question
        promise, what = USABLE, f"{question} raised {type(error).__name__}: {error}"
        if isinstance(error, NoAnswerInTimeError):
            promise, what = IN_TIME, f"{question}: no answer after {self._max_hang_s:g} s"
        elif isinstance(error, UnusableAnswerError):
            what = str(error)
            if question == "pins_that_yield" and not fault.is_late:
                promise = YIELDS
                what += ", of pins that nothing but this request could free"
        what = what if event.rules == "policy" else f"the predictor: {what}"
        if fault.is_late:
            self.late[len(self.answers)] = what
        else:
            self._break(promise, what)

    def _break(self, promise: str, what: str) -> None:
        self.breach = self.breach or (promise, what)

    # What happens

    def arrive(
        self,
        job: str | None,
        new_tokens: int,
        output_tokens: int,
        command: str | None = None,
        is_last_step: bool = False,
    ) -> None:
        last = self._last_request.get(job)
        context = [] if last is None or job is None else list(last.all_token_ids)
        prompt = [*context, *prompt_of(new_tokens, salt=self.num_turns)]
        room_tokens = (self._shape["num_blocks"] - 3) * BLOCK_TOKENS - output_tokens
        if len(prompt) > room_tokens:  # as agents do: begin a shorter context
            prompt = prompt_of(min(new_tokens, room_tokens), salt=self.num_turns)
        tags: dict[str, Any] = {} if job is None else {"job_id": job}
        if job is not None and "." in job:
            tags["parent_job_id"] = job.partition(".")[0]
        if job is not None and is_last_step:
            tags["is_last_step"] = 1
        reply = None if command is None else f"```bash\n{command}\n```"
        request_id = self._engine.add(prompt, max_tokens=output_tokens, reply=reply, **tags)
        self._last_request[job] = self._scheduler.requests[request_id]
        self._live[request_id] = (self._engine.clock(), _request_of(job))
        self.num_turns += 1

    def abort(self, job: str | None) -> None:
        request = self._last_request.get(job)
        if request is not None and request.request_id in self._live:
            self._engine.abort(request.request_id)
            self._look()

    def reset(self, preempts_running: bool) -> None:
        # with a step under way vLLM's engine waits for it first
        if not self._engine.in_flight:
            # vLLM refuses to preempt all turns of an engine with a KV connector
            preempts = preempts_running and not self._shape["offload_bytes"]
            self._scheduler.reset_prefix_cache(reset_running_requests=preempts)

    def pass_time(self, seconds: float) -> None:
        until_s = self._engine.clock() + seconds
        while self._scheduler.has_unfinished_requests() and self._engine.clock() < until_s:
            if not self._step():
                return
        if self._engine.clock() < until_s:
            self._engine.wait(until_s - self._engine.clock())

    def rush(self) -> None:
        """Keep more new jobs of two turns in the engine than it can run, until its elders end."""
        elders, jobs = set(self._live), list[str]()
        self._step_s = RUSH_STEP_S
        while elders & self._live.keys() and self.breach is None:
            jobs = [job for job in jobs if self._goes_on(job)]
            while len(jobs) < self._shape["max_num_seqs"] + 2:
                self._num_rush_jobs += 1
                jobs.append(f"rush-{self._num_rush_jobs}")
                self.arrive(jobs[-1], 40, 4)
            self._step()
        self._step_s = STEP_S

    def _goes_on(self, job: str) -> bool:
        """Send the second turn of a job of the rush once the first has ended; False if it ends."""
        request = self._last_request[job]
        if request.request_id in self._live:
            return True
        if request.num_prompt_tokens > 40:
            return False
        self.arrive(job, 20, 4, is_last_step=True)
        return True

    def drain(self) -> None:
        """All turns must end, and all blocks come back."""
        for _ in range(MAX_STEPS):
            if self.breach is not None:
                return
            if not self._scheduler.has_unfinished_requests() and not self._engine.in_flight:
                break
            self._step()
        else:
            left = ", ".join(who for _, who in self._live.values())
            return self._break(ENDS, f"{MAX_STEPS} steps after the last arrival: {left:.200}")
        self._engine.wait(4 * 3600.0)
        while self._engine.step() is not None:
            pass
        missing = self._engine.pool.num_gpu_blocks - 1 - self._engine.num_free
        if missing and not self._engine.lost_blocks():
            self._break(NO_LOSS, f"{missing} blocks are not free after all turns and pins ended")
        return None

    def _step(self) -> bool:
        """One step; False once a promise is broken."""
        output = self._engine.step(step_s=self._step_s)
        if output is not None:
            self._started.update(output.num_scheduled_tokens)
            if not output.total_num_scheduled_tokens:
                self._engine.clock.now_s += STUCK_S
        self._look()
        return self.breach is None

    def _look(self) -> None:
        """Forget requests that have ended, and find those that wait for too long."""
        now_s = self._engine.clock()
        for request_id, (arrived_s, who) in list(self._live.items()):
            age_s = now_s - arrived_s
            if request_id not in self._scheduler.requests:
                del self._live[request_id]
            elif age_s > MAX_WAIT_S and request_id not in self._started:
                self._break(WAITS, f"{who} has had no blocks {age_s:.0f} s after its arrival")
            elif age_s > 2 * MAX_WAIT_S:
                self._break(ENDS, f"{who} has not ended {age_s:.0f} s after its arrival")

    def check_blocks(self) -> None:
        if self.breach is None and (lost := self._engine.lost_blocks()):
            self._break(NO_LOSS, f"blocks {lost[:8]} are counted wrongly")


def _shown(answer: Any) -> str:
    """An answer as text; pins by their jobs."""
    if isinstance(answer, list | tuple) and answer and isinstance(answer[0], Pin):
        return f"pins of {', '.join(pin.job_id for pin in answer)}"
    return repr(answer)[:200]
