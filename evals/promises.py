"""Holds a policy to its promises: plays schedules on vLLM's real scheduler and looks for a breach.

Called by `agentkv policy check`. Time is virtual, but for the seconds that an answer takes. A play
ends with the first promise that is broken.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentkv.guard import MAX_ANSWER_S, Fault, UnusableAnswerError
from agentkv.integrations.vllm.retention import Rules
from agentkv.policies import Pin, Policy, Settings, load_policy
from agentkv.policies.answers import CHECKS
from agentkv.protocol import ToolEvent
from agentkv.testing.stepped_engine import BLOCK_TOKENS, SteppedEngine, prompt_of

from .progress import Show
from .schedules import (
    Abort,
    Arrival,
    Event,
    Pass,
    Release,
    Reset,
    Rush,
    Schedule,
    ToolReport,
    random_schedule,
    shrink,
)

MAX_WAIT_S = 2000.0
"""Virtual seconds after which every turn must have had its first blocks: the 1800 s of
`Policy.max_wait_s`, and then its place in the queue. It must have ended after twice that."""
MAX_STEPS = 10_000
"""Steps in which all turns of a schedule must have ended once no more arrive."""
STEP_S = 0.01
RUSH_STEP_S = 2.0
"""Seconds of a step while there is a rush: so that MAX_WAIT_S pass in a thousand steps."""
STUCK_S = 1.0
"""Seconds that pass in a step in which nothing could be scheduled."""
TIER_BYTES = 10_000_000
MAX_HANG_S = 1.0
"""Seconds after which an answer that does not come is broken off."""
MAX_SHRINK_PLAYS = 80
"""Plays spent on making one schedule smaller."""

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


class NoAnswerInTimeError(Exception):
    """An answer was broken off after MAX_HANG_S."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A promise that was broken, and how it showed."""

    promise: str
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A breach with the smallest schedule that shows it, and the number of the one that did."""

    breach: Breach
    schedule: Schedule
    number: int


@dataclass(slots=True)
class Played:
    """What a play showed."""

    breach: Breach | None = None
    answers: list[tuple[str, str]] = field(default_factory=list)
    """Each question that was asked, and its answer."""
    num_turns: int = 0
    slowest_s: float = 0.0


@dataclass(slots=True)
class CheckResult:
    """What all plays showed: at most one finding a promise."""

    findings: dict[str, Finding] = field(default_factory=dict)
    num_schedules: int = 0
    num_turns: int = 0
    num_answers: int = 0
    slowest_s: float = 0.0


def check_promises(
    settings: Mapping[str, Any],
    *,
    seed: int,
    num_schedules: int,
    show: Show = lambda completed, text: None,
) -> CheckResult:
    """Play random schedules under the policy that the settings name, each of them twice.

    A promise that was broken is looked at no further: only other ones are shrunk.
    """
    result = CheckResult()
    for number in range(num_schedules):
        schedule = random_schedule(random.Random(f"{seed}/{number}"))
        played = play(settings, schedule)
        result.num_schedules += 1
        result.num_turns += played.num_turns
        result.num_answers += len(played.answers)
        result.slowest_s = max(result.slowest_s, played.slowest_s)
        breach = confirmed(settings, schedule, played)
        if breach is not None and breach.promise not in result.findings:
            smallest, breach = _smallest(settings, schedule, breach)
            result.findings[breach.promise] = Finding(breach, smallest, number)
        show(result.num_schedules, f"{result.num_schedules} of {num_schedules} schedules")
    return result


def confirmed(settings: Mapping[str, Any], schedule: Schedule, played: Played) -> Breach | None:
    """The breach of a play, if playing again shows it too, or that the answers differ.

    A busy machine can make any answer late: only one that is late each time counts.
    """
    again = play(settings, schedule)
    if played.breach is None and again.breach is None:
        return _difference(played.answers, again.answers)
    if played.breach is not None and played.breach.promise == IN_TIME:
        is_late_again = again.breach is not None and again.breach.promise == IN_TIME
        return again.breach if is_late_again else None
    if again.breach is not None and again.breach.promise == IN_TIME:
        return played.breach
    if played.breach != again.breach:
        difference = _difference(played.answers, again.answers)
        return difference or played.breach or again.breach
    return played.breach


def _difference(answers: list[tuple[str, str]], others: list[tuple[str, str]]) -> Breach | None:
    for number, (one, other) in enumerate(zip(answers, others, strict=False), start=1):
        if one != other:
            what = f"answer {number}: {one[0]} -> {one[1]}, and when played again "
            return Breach(SAME, what + f"{other[0]} -> {other[1]}")
    return None


def _smallest(
    settings: Mapping[str, Any], schedule: Schedule, breach: Breach
) -> tuple[Schedule, Breach]:
    last, num_left = breach, MAX_SHRINK_PLAYS

    def still_fails(candidate: Schedule) -> bool:
        nonlocal last, num_left
        if not num_left:
            return False
        num_left -= 1
        played = play(settings, candidate)
        found = played.breach
        if breach.promise in (SAME, IN_TIME):
            found = confirmed(settings, candidate, played)
        if found is None or found.promise != breach.promise:
            return False
        last = found
        return True

    return shrink(schedule, still_fails), last


def play(settings: Mapping[str, Any], schedule: Schedule) -> Played:
    """Play a schedule to its end, or to the first breach."""
    with _breaking_off():
        return _Play(settings, schedule).run()


@contextmanager
def _breaking_off() -> Iterator[None]:
    """Let an alarm break off what runs; a timer that ran before goes on after each answer."""

    def stop(*_: Any) -> None:
        raise NoAnswerInTimeError(f"no answer after {MAX_HANG_S:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def _broken_off(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The answer of a method, which is given MAX_HANG_S for it."""
    # Again and again: an exception in a callback of the garbage collector would be passed over.
    before = signal.setitimer(signal.ITIMER_REAL, MAX_HANG_S, MAX_HANG_S)
    try:
        return method(*args, **options)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


class _Play:
    """One schedule on one engine."""

    def __init__(self, settings: Mapping[str, Any], schedule: Schedule) -> None:
        self._schedule = schedule
        self._played = Played()
        shape = schedule.shape
        self._engine = SteppedEngine(
            num_blocks=shape.num_blocks,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            is_async=shape.is_async,
            offload_bytes=TIER_BYTES if shape.has_tier else 0,
            policy_class=self._make_policy,
            **settings,
        )
        self._scheduler = self._engine.scheduler
        self._retention = self._scheduler.retention
        self._scheduler.rules_failed = self._rules_failed
        predictor = self._retention.predictor.predictor
        for question in () if predictor is None else ("predict", "observe"):
            setattr(predictor, question, partial(_broken_off, getattr(predictor, question)))
        self._step_s = STEP_S
        self._last_request: dict[str | None, Any] = {}
        """The newest request of each job."""
        self._live: dict[str, tuple[float, str]] = {}
        """Requests in the engine: when they arrived, and as what."""
        self._started: set[str] = set()
        self._num_rush_jobs = 0

    # The policy, and what it answers

    def _make_policy(self, settings: Settings, pool_tokens: int) -> Policy:
        made = self._made(settings, pool_tokens)
        for question in QUESTIONS:
            setattr(made, question, partial(self._ask, question, getattr(made, question)))
        return made

    def _made(self, settings: Settings, pool_tokens: int) -> Policy:
        try:
            return load_policy(settings.policy)(settings, pool_tokens)
        except Exception as error:
            self._broken(USABLE, f"it cannot be made: {type(error).__name__}: {error}")
            return Policy(settings, pool_tokens)

    def _ask(self, question: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        began_s = time.perf_counter()
        try:
            answer = _broken_off(method, *args, **options)
        except Exception as error:
            self._rules_failed(
                "policy", Fault("policy", question, error, is_late=False, is_last=False)
            )
            raise
        finally:
            answer_s = time.perf_counter() - began_s
        self._played.slowest_s = max(self._played.slowest_s, answer_s)
        self._played.answers.append((question, _shown(answer)))
        return answer

    def _rules_failed(self, rules: Rules, fault: Fault) -> None:
        error, question = fault.error, fault.question
        promise, what = USABLE, f"{question} raised {type(error).__name__}: {error}"
        if isinstance(error, NoAnswerInTimeError):
            promise, what = IN_TIME, f"{question}: {error}"
        elif isinstance(error, UnusableAnswerError):
            promise, what = IN_TIME if fault.is_late else USABLE, str(error)
            if question == "pins_that_yield" and not fault.is_late:
                promise = YIELDS
                what += ", of pins that nothing but this request could free"
        self._broken(promise, what if rules == "policy" else f"the predictor: {what}")

    def _broken(self, promise: str, what: str) -> None:
        if self._played.breach is None:
            self._played.breach = Breach(promise, what)

    # The schedule

    def run(self) -> Played:
        for event in self._schedule.events:
            if self._played.breach is not None:
                return self._played
            self._apply(event)
            self._check_blocks()
        self._drain()
        return self._played

    def _apply(self, event: Event) -> None:
        match event:
            case Arrival():
                self._arrive(event)
            case ToolReport():
                tool = ToolEvent(
                    "finished" if event.has_finished else "started", command=event.command
                )
                self._retention.tool_signal(event.job, tool)
            case Abort():
                request = self._last_request.get(event.job)
                if request is not None and request.request_id in self._live:
                    self._engine.abort(request.request_id)
                    self._look()
            case Release():
                self._retention.release(event.job)
            case Reset():
                # with a step under way vLLM's engine waits for it first
                if not self._engine.in_flight:
                    # vLLM refuses to preempt all turns of an engine with a KV connector
                    preempts = event.preempts_running and not self._schedule.shape.has_tier
                    self._scheduler.reset_prefix_cache(reset_running_requests=preempts)
            case Pass():
                self._pass(event.seconds)
            case Rush():
                self._rush()

    def _arrive(self, arrival: Arrival) -> None:
        job, last = arrival.job, self._last_request.get(arrival.job)
        context = [] if last is None or job is None else list(last.all_token_ids)
        salt = self._played.num_turns
        prompt = [*context, *prompt_of(arrival.new_tokens, salt=salt)]
        room_tokens = (self._schedule.shape.num_blocks - 3) * BLOCK_TOKENS - arrival.output_tokens
        if len(prompt) > room_tokens:  # as agents do: begin a shorter context
            prompt = prompt_of(min(arrival.new_tokens, room_tokens), salt=salt)
        tags: dict[str, Any] = {} if job is None else {"job_id": job}
        if job is not None and "." in job:
            tags["parent_job_id"] = job.partition(".")[0]
        if arrival.is_last_step:
            tags["is_last_step"] = 1
        reply = None if arrival.command is None else f"```bash\n{arrival.command}\n```"
        request_id = self._engine.add(
            prompt, max_tokens=arrival.output_tokens, reply=reply, **(tags if job else {})
        )
        self._last_request[job] = self._scheduler.requests[request_id]
        who = "a request without a job" if job is None else f"a turn of job {job}"
        self._live[request_id] = (self._engine.clock(), who)
        self._played.num_turns += 1

    def _pass(self, seconds: float) -> None:
        until_s = self._engine.clock() + seconds
        while self._scheduler.has_unfinished_requests() and self._engine.clock() < until_s:
            if not self._step():
                return
        if self._engine.clock() < until_s:
            self._engine.wait(until_s - self._engine.clock())

    def _rush(self) -> None:
        """Keep more new jobs of two turns in the engine than it can run, until its elders end."""
        elders, jobs = set(self._live), list[str]()
        self._step_s = RUSH_STEP_S
        while elders & self._live.keys() and self._played.breach is None:
            jobs = [job for job in jobs if self._goes_on(job)]
            while len(jobs) < self._schedule.shape.max_num_seqs + 2:
                self._num_rush_jobs += 1
                jobs.append(f"rush-{self._num_rush_jobs}")
                self._arrive(Arrival(jobs[-1], 40, 4))
            self._step()
        self._step_s = STEP_S

    def _goes_on(self, job: str) -> bool:
        """Send the second turn of a job of the rush once the first has ended; False if it ends."""
        request = self._last_request[job]
        if request.request_id in self._live:
            return True
        if request.num_prompt_tokens > 40:
            return False
        self._arrive(Arrival(job, 20, 4, is_last_step=True))
        return True

    def _drain(self) -> None:
        """Nothing more arrives: all turns must end, and all blocks come back."""
        for _ in range(MAX_STEPS):
            if self._played.breach is not None:
                return
            if not self._scheduler.has_unfinished_requests() and not self._engine.in_flight:
                break
            self._step()
        else:
            left = ", ".join(who for _, who in self._live.values())
            return self._broken(ENDS, f"{MAX_STEPS} steps after the last arrival: {left:.200}")
        self._engine.wait(4 * 3600.0)
        while self._engine.step() is not None:
            pass
        self._check_blocks()
        missing = self._engine.pool.num_gpu_blocks - 1 - self._engine.num_free
        if missing:
            self._broken(NO_LOSS, f"{missing} blocks are not free after all turns and pins ended")
        return None

    def _step(self) -> bool:
        """One step; False once a promise is broken."""
        output = self._engine.step(step_s=self._step_s)
        if output is not None:
            self._started.update(output.num_scheduled_tokens)
            if not output.total_num_scheduled_tokens:
                self._engine.clock.now_s += STUCK_S
        self._look()
        return self._played.breach is None

    def _look(self) -> None:
        """Forget requests that have ended, and find those that wait for too long."""
        now_s = self._engine.clock()
        for request_id, (arrived_s, who) in list(self._live.items()):
            age_s = now_s - arrived_s
            if request_id not in self._scheduler.requests:
                del self._live[request_id]
            elif age_s > MAX_WAIT_S and request_id not in self._started:
                self._broken(WAITS, f"{who} has had no blocks {age_s:.0f} s after its arrival")
            elif age_s > 2 * MAX_WAIT_S:
                self._broken(ENDS, f"{who} has not ended {age_s:.0f} s after its arrival")

    def _check_blocks(self) -> None:
        lost = self._engine.lost_blocks()
        if lost:
            self._broken(NO_LOSS, f"blocks {lost[:8]} are counted wrongly")


def _shown(answer: Any) -> str:
    """An answer as text; pins by their jobs."""
    if isinstance(answer, list | tuple) and answer and isinstance(answer[0], Pin):
        return f"pins of {', '.join(pin.job_id for pin in answer)}"
    return repr(answer)[:200]
