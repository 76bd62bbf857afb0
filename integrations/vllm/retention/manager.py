"""Connects jobs, pins and the policy: what each event of a job means for its KV blocks.

Knows blocks only as opaque values and nothing of vLLM. Runs on the engine's main thread; every
call is O(log jobs), except under memory pressure, where pins are sorted once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentkv.protocol import Tags, ToolEvent

from ..policy import make_policy
from ..policy.costs import Footprint, Prices, StepFit, TierWatch
from ..policy.forecast import JobGrowth
from ..policy.jobs import Context, Job, JobTable, Turn
from ..settings import MAX_PRIORITY, Settings
from ..telemetry.counters import Counters
from ..telemetry.event_log import TimestampRecord, open_writer
from .admission import Contention, Gate
from .pin_lifecycle import PinKeeper
from .predictor import Decode, Reply, SideWork, open_forecaster
from .tool_signals import PinDecisions


class Retention:
    """The jobs of one engine and what they leave in the cache.

    The pool holds `num_blocks` of `block_tokens`. `free` gives blocks back, `on_rank_change` hears
    of jobs whose waiting turns moved in the queue (None: of all), `on_deadline` of each new expiry;
    `clock` is monotonic, in seconds. `side_work` does what takes longer; at once, if none is given.
    `drops_last_block`: the last block of a prefix hit is always computed anew.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        num_blocks: int,
        block_tokens: int,
        clock: Callable[[], float],
        free: Callable[[Sequence[Any], int], None],
        on_rank_change: Callable[[str | None], None],
        on_deadline: Callable[[float], None],
        side_work: SideWork | None = None,
        drops_last_block: bool = False,
    ) -> None:
        self.settings = settings
        self.policy = make_policy(settings, num_blocks * block_tokens)
        self.forecaster = open_forecaster(settings, side_work or SideWork(), clock=clock)
        self.jobs = JobTable(max_jobs=settings.max_jobs, lease_s=settings.job_lease_s)
        self.turns: dict[str, Turn] = {}
        self.growth = JobGrowth()
        self._block_tokens = block_tokens
        self._dropped_tokens = block_tokens if drops_last_block else 0
        self.step_fit = StepFit(settings.prefill_reload)
        self.tier = TierWatch(clock)
        self.footprint = Footprint(block_tokens)
        self.prices = Prices(self.step_fit, self.tier, self.footprint)
        self.counters = Counters()
        self.record = TimestampRecord(
            max_events=settings.record_events, clock=clock, writer=open_writer(settings)
        )
        self.arrivals = itertools.count()
        self._clock = clock
        self._on_rank_change = on_rank_change
        self.keeper = PinKeeper(
            self.counters,
            self.record,
            clock=clock,
            free=free,
            on_change=self._pin_changed,
            on_deadline=on_deadline,
            max_ttl_s=settings.max_ttl_s,
        )
        self.pins = self.keeper.pins
        self.gate = Gate(
            self.policy,
            self.growth,
            self.footprint,
            self.pins,
            num_blocks=num_blocks,
            clock=clock,
        )
        self.decisions = PinDecisions(
            self.policy,
            self.forecaster,
            self.keeper,
            self.prices,
            self.counters,
            self.record,
            clock=clock,
        )
        self.contention = Contention(
            self.policy,
            self.jobs,
            self.turns,
            self.pins,
            self.gate,
            self.growth,
            self.prices,
            self.counters,
            self.record,
            block_tokens=block_tokens,
            patience_s=settings.patience_s,
            clock=clock,
            on_rank_change=on_rank_change,
        )

    def turn_arrived(
        self,
        request_id: str,
        tags: Tags,
        *,
        num_prompt_tokens: int,
        block_hashes: list[Any],
        priority: int = 0,
    ) -> None:
        """Register a request that carries a `job_id`; `priority` is the client's, lower first."""
        assert tags.job_id is not None
        now_s = self._clock()
        self.forget_idle_jobs()
        order = next(self.arrivals)
        job = self.jobs.get(tags.job_id)
        parent = self._parent(tags, job)
        is_first = parent is None and (job is None or not job.has_run)
        if job is None:
            # A sub-agent stands where the job stands that waits for it.
            job = Job(tags.job_id, order if parent is None else parent.order)
            job.first_prompt_tokens = num_prompt_tokens
            self.jobs.add(job)
        job.priority = max(-MAX_PRIORITY, min(priority, MAX_PRIORITY))
        fingerprint = (num_prompt_tokens, block_hashes[-1] if block_hashes else None)
        is_new = job.take_tags(tags, fingerprint)
        turn = Turn(request_id, job, order, now_s, num_prompt_tokens, bool(tags.is_last_step))
        turn.is_first = is_first
        turn.common_tokens = min(
            job.common_tokens(block_hashes, self._block_tokens),
            (num_prompt_tokens - 1) // self._block_tokens * self._block_tokens,
        )
        turn.is_aside = self.pins.get(job.job_id) is not None and job.is_aside(turn)
        if not turn.is_aside:
            self.decisions.turn_arrived(job, tags, is_new=is_new)
        self.contention.turn_arrived(turn)
        self.turns[request_id] = job.live[request_id] = turn
        self.jobs.touch(job, now_s)
        self.record.add(
            job.job_id,
            "arrival",
            turn=job.num_turns,
            prompt_length=num_prompt_tokens,
            retry=not is_new,
        )

    def _parent(self, tags: Tags, job: Job | None) -> Job | None:
        """The live job that spawned this one: a turn of it has run, and it is another."""
        parent = None if tags.parent_job_id is None else self.jobs.get(tags.parent_job_id)
        return parent if parent is not None and parent is not job and parent.has_run else None

    def request_arrived(self, request_id: str) -> None:
        """Register a request without a job."""
        self.contention.request_arrived(request_id, next(self.arrivals))

    def _pin_changed(self, job_id: str) -> None:
        self.contention.changed(job_id)
        self._on_rank_change(job_id)

    def load_began(self, request_id: str, num_tokens: int) -> None:
        """A tier gives back so many tokens; counted if they are of the job's own past."""
        turn = self.turns.get(request_id)
        if turn is None:
            return
        self.contention.load_began(turn)
        if turn.common_tokens:
            self.tier.load_began(request_id, num_tokens)

    def loads_done(self, request_ids: Iterable[str]) -> None:
        """Whatever these had to load is there."""
        waited_token_s = self.tier.loads_done(request_ids)
        filled_token_s = waited_token_s * self.footprint.scale
        self.gate.came_back(filled_token_s / self.policy.pool_tokens)

    def turn_admitted(self, request_id: str, *, hit_tokens: int) -> None:
        """A turn has its blocks: the job's pin hands over, and an evicted cache is noticed."""
        self.contention.admitted(request_id)
        turn = self.turns.get(request_id)
        if turn is None:
            return
        job, now_s = turn.job, self._clock()
        is_first = turn.admitted_s is None
        pin = self.pins.get(job.job_id)
        if pin is not None and not turn.is_aside:
            self.keeper.end(pin, "returned")
        self.contention.changed(job.job_id)
        if not is_first:
            self._computes_anew(turn.num_prompt_tokens - hit_tokens)
            self.record.add(job.job_id, "resumed", hit_length=hit_tokens)
            return
        turn.admitted_s = now_s
        waited_s = now_s - turn.arrived_s
        lost_tokens = turn.common_tokens - self._dropped_tokens - hit_tokens
        if lost_tokens > 0:
            self.tier.lost(lost_tokens)
            self._computes_anew(lost_tokens)
            job.num_evicted += 1
            self.policy.learned.queueing.observe(waited_s)
            self.record.add(job.job_id, "evicted", lost_tokens=lost_tokens)
        job.num_diverged += job.has_diverged(turn) and not turn.is_aside
        self.record.add(
            job.job_id,
            "waiting_to_running",
            prompt_length=turn.num_prompt_tokens,
            hit_length=hit_tokens,
            expected_hit_length=turn.common_tokens,
            waited_s=round(waited_s, 6),
        )

    def _computes_anew(self, num_tokens: int) -> None:
        if num_tokens > 0:
            self.gate.came_back(self.prices.rebuild(num_tokens).pool_s)

    def turn_preempted(self, request_id: str) -> None:
        self.counters.add("preemptions_total")
        turn = self.turns.get(request_id)
        self.contention.preempted(request_id)
        if turn is not None:
            self.contention.changed(turn.job.job_id)
            self.record.add(turn.job.job_id, "preempted")

    def should_pin(self, request_id: str, *, is_finished_turn: bool) -> bool:
        """Whether a turn that ends now may keep its blocks: asked before they are popped."""
        turn = self.turns.get(request_id)
        if turn is None or not is_finished_turn:
            return False
        if turn.is_last_step or turn.is_aside or turn.job.is_released:
            return False
        return self.decisions.first_ttl(turn.num_prompt_tokens).seconds > 0

    def turn_ended(
        self,
        request_id: str,
        *,
        is_finished_turn: bool,
        context: Context | None = None,
        blocks: Sequence[Any] = (),
        num_own_blocks: int = 0,
        fence: int = 0,
    ) -> None:
        """A turn is over; `blocks` are its kept ones (none: they were freed), of which nobody else
        holds `num_own_blocks`."""
        self.contention.ended(request_id)
        self.tier.forget(request_id)
        turn = self.turns.pop(request_id, None)
        if turn is None:
            return
        job, now_s = turn.job, self._clock()
        job.live.pop(request_id, None)
        self.contention.changed(job.job_id)
        self.jobs.touch(job, now_s)
        if is_finished_turn:
            self._note_finish(turn, context, now_s)
        else:
            self.record.add(job.job_id, "aborted")
        if blocks:
            assert context is not None
            ttl = self.decisions.first_ttl(context.num_tokens)
            self.keeper.pin(
                job,
                blocks,
                fence,
                ttl,
                num_own_blocks=num_own_blocks,
                is_decided=self.decisions.is_final,
            )
        elif (pin := self.pins.get(job.job_id)) is not None:
            goes_on = is_finished_turn or turn.is_aside
            if not job.live and (turn.is_last_step or not goes_on):
                self.keeper.end(pin, "last_step" if is_finished_turn else "aborted")
            elif not job.has_waiting_turn:
                # Its expiry may have passed unheeded while this turn waited.
                self.keeper.reschedule(pin)
        if job.live:
            return
        if turn.is_last_step or job.is_released:
            self._close(job, "last_step" if turn.is_last_step else "released")
        elif is_finished_turn and not turn.is_aside:
            self.decisions.turn_finished(job, request_id)

    def _note_finish(self, turn: Turn, context: Context | None, now_s: float) -> None:
        job = turn.job
        if not turn.is_aside:
            job.finish_turn(now_s)
            if context is not None:
                before = job.context_tokens or job.first_prompt_tokens
                self.growth.turn_ended(max(0, context.num_tokens - before))
                job.leave_context(context)
        self.record.add(job.job_id, "finish", turn=job.num_turns, context_length=job.context_tokens)

    def tool_signal(self, job_id: str, event: ToolEvent) -> dict[str, Any] | None:
        """A tool of the job started or finished; None for an unknown job."""
        job = self.jobs.get(job_id)
        if job is None:
            return None
        self.jobs.touch(job, self._clock())
        is_taken = self.decisions.tool_signal(job, event)
        self.expire_due_pins()
        pin = self.pins.get(job_id)
        return {
            "job_id": job_id,
            "state": event.state,
            "is_pinned": pin is not None,
            "is_ignored": not is_taken,
        }

    def wants_reply(self, request_id: str) -> bool:
        """Whether a pin waits for what the reply of this finished turn runs."""
        return request_id in self.decisions.awaiting

    def read(self, reply: Reply, decode: Decode) -> None:
        """Have a reply read, and decide about its job's pin once it is."""
        self.decisions.read(reply, decode)
        self.expire_due_pins()

    def do_what_is_due(self) -> None:
        """Decide by what has been read since, end pins, save. O(1) if there is nothing to do."""
        self.decisions.apply_forecasts()
        self.expire_due_pins()
        if self.forecaster is not None:
            self.forecaster.save_if_due()

    @property
    def next_due_s(self) -> float | None:
        """When there will be something to do, as far as is known now."""
        saving_s = None if self.forecaster is None else self.forecaster.next_save_s
        times_s = [time_s for time_s in (self.pins.next_expiry_s, saving_s) if time_s is not None]
        return min(times_s, default=None)

    def close(self) -> None:
        """Write what is to outlive the engine."""
        if self.forecaster is not None:
            self.forecaster.close()
        self.record.close()

    def release(self, job_id: str) -> dict[str, Any] | None:
        """The job is over: free its pin now; None for an unknown job."""
        job = self.jobs.get(job_id)
        if job is None:
            return None
        pin = self.pins.get(job_id)
        freed_blocks = 0 if pin is None else len(pin.blocks)
        if pin is not None:
            self.keeper.end(pin, "released")
        job.is_released = True
        if not job.live:
            self._close(job, "released")
        return {"job_id": job_id, "freed_blocks": freed_blocks}

    def forget_idle_jobs(self) -> None:
        """Forget jobs whose lease is over, and the idlest ones beyond `max_jobs`."""
        now_s = self._clock()
        while (job := self.jobs.next_to_forget(now_s)) is not None:
            pin = self.pins.get(job.job_id)
            if pin is not None:
                self.keeper.end(pin, "expired")
            self._close(job, "lease")

    def _close(self, job: Job, reason: str) -> None:
        self.decisions.job_closed(job, reason)
        self.policy.learned.memoryfulness.observe(max(job.num_turns, 1))
        self.growth.job_ended(max(job.num_turns, 1))
        self.jobs.remove(job)
        self.gate.forget(job.job_id)
        self.record.add(job.job_id, "closed", reason=reason, turns=job.num_turns)

    def expire_due_pins(self) -> None:
        """End pins whose TTL is over, except of jobs whose next turn waits. O(1) if none is."""
        while (pin := self.keeper.pop_due()) is not None:
            job = self.jobs.get(pin.job_id)
            if job is None or not job.has_waiting_turn:
                self.keeper.end(pin, "expired")
