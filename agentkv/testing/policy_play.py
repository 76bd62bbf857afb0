"""One engine under a policy, driven by a schedule: what it was asked, and what came of it.

`promises` plays two of them side by side. Needs vLLM; time is virtual, but for the seconds that an
answer takes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from agentkv.events import RulesFailed
from agentkv.guard import MAX_ANSWER_S, Fault, UnusableAnswerError
from agentkv.policies import Pin, Policy, Settings, load_policy
from agentkv.policies.answers import CHECKS
from tests.stepped_engine import BLOCK_TOKENS, SteppedEngine, prompt_of

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

LAYERS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "states": ("recurrent layers, too, ", {"num_state_groups": 1}),
    "fine states": (
        "two groups of recurrent layers, too, hits in units of 4 tokens, ",
        {"num_state_groups": 2, "match_tokens": 4},
    ),
    "windows": ("layers with a sliding window, too, ", {"window_tokens": 48}),
}
"""Layers that a schedule's engine has besides full attention, in words and as its shape."""

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
    """An answer was broken off."""


def request_name(job: str | None) -> str:
    return "a request without a job" if job is None else f"a turn of job {job}"


def difference(one: PolicyPlay, other: PolicyPlay) -> str | None:
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
def breaking_off() -> Iterator[None]:
    """Let an alarm break off what runs; a timer that ran before goes on after each answer."""

    def stop(*_: Any) -> None:
        raise NoAnswerInTimeError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


class PolicyPlay:
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
        # what layers with a state take of a request; those with a window nearly as much as the rest
        num_blocks = shape["num_blocks"] - 3 - 4 * shape.get("num_state_groups", 0)
        self._room_blocks = num_blocks // 2 if "window_tokens" in shape else num_blocks
        self._step_s = STEP_S
        self._last_request: dict[str | None, Any] = {}
        """The newest request of each job."""
        self._live: dict[str, tuple[float, str]] = {}
        """Requests in the engine: when they arrived, and as what."""
        self._started: set[str] = set()
        self._num_rush_jobs = 0
        with breaking_off():
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
        self.answers.append((question, shown_answer(answer)))
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
        room_tokens = self._room_blocks * BLOCK_TOKENS - output_tokens
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
        self._live[request_id] = (self._engine.clock(), request_name(job))
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


def shown_answer(answer: Any) -> str:
    """An answer as text; pins by their jobs."""
    if isinstance(answer, list | tuple) and answer and isinstance(answer[0], Pin):
        return f"pins of {', '.join(pin.job_id for pin in answer)}"
    return repr(answer)[:200]
