"""What stock would have hit, played with turns whose times are set by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agentkv.events import Closed, RequestAdmitted, RequestArrived, RequestEnded
from agentkv.integrations.vllm.retention import CacheGroup, KVPool
from agentkv.integrations.vllm.retention.background import BackgroundWorker
from agentkv.integrations.vllm.retention.costs import RestoreCostModel
from agentkv.integrations.vllm.watch import ghost
from agentkv.policies.jobs import Job
from agentkv.policies.jobs import Turn as JobTurn
from agentkv.protocol import JobKey
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

BLOCK = 16


class Ghost:
    """A ghost of a pool of `num_blocks`, told of turns at set times; it computes in no time."""

    def __init__(self, num_blocks: int, *groups: CacheGroup) -> None:
        self.pool = KVPool(num_blocks, BLOCK, groups=groups)
        self.now_s = 0.0
        costs = RestoreCostModel(self.pool, None, self.clock)
        self.woken_s: list[float] = []
        worker = BackgroundWorker(wake=lambda: self.woken_s.append(self.now_s))
        self.ghost = ghost.StockGhost(self, costs, worker, 100)  # type: ignore[arg-type]
        self._jobs: dict[str, Job] = {}

    def clock(self) -> float:
        return self.now_s

    def arrives(self, at_s: float, name: str, job_id: str | None = None) -> None:
        self.now_s = at_s
        turn = None
        if job_id is not None:
            job = self._jobs.setdefault(job_id, Job(JobKey.read(job_id), 0))
            job.num_turns += 1
            turn = JobTurn(name, job, 0, at_s, 0)
        self.ghost.on_request_arrived(RequestArrived(name, turn))

    def runs(self, name: str, start_s: float, end_s: float, blocks: range, hit: int = 0) -> None:
        """It had its blocks from `start_s` on, and found `hit` of them."""
        self.now_s = start_s
        facts = {"request_id": name, "block_hashes": list(blocks)}
        request = SimpleNamespace(**facts, num_prompt_tokens=len(blocks) * BLOCK + 1)
        self.ghost.on_request_admitted(RequestAdmitted(request, hit * BLOCK))
        self.now_s = end_s
        self.ghost.on_request_ended(RequestEnded(request, len(blocks) * BLOCK))

    def over(self, job_id: str) -> None:
        job = self._jobs[job_id]
        self.ghost.on_closed(Closed(job.job_id, job, "released"))

    @property
    def hits(self) -> dict[str, list[int]]:
        """Blocks that each job's later turns would have found."""
        found: dict[str, list[int]] = {}
        for each in self.ghost.compared:
            found.setdefault(each.job_id, []).append(each.stock_hit_tokens // BLOCK)
        return found


def test_a_job_that_was_held_back_is_played_at_once() -> None:
    """A newcomer that waited for a minute takes memory under stock when it arrives, so that a job
    which really kept its context would have lost it."""
    told = Ghost(10)
    told.arrives(0.0, "a1", "a")
    told.runs("a1", 0.0, 1.0, range(8))
    told.arrives(2.0, "b1", "b")  # stock runs it at once
    told.arrives(5.0, "a2", "a")
    told.runs("a2", 5.0, 6.0, range(9), hit=8)
    assert told.hits == {}  # not certain yet: what b does is not known
    told.runs("b1", 62.0, 63.0, range(100, 108))
    told.arrives(64.0, "b2", "b")  # one second after its end: after 4 s as it is played
    told.runs("b2", 64.0, 65.0, range(100, 109), hit=8)
    assert told.hits == {"a": [1], "b": [8]}  # b took 9 of 10


def test_what_does_not_fit_waits_and_keeps_back_all_behind_it() -> None:
    """First come, first served, and a later turn comes later if the one before had to wait."""
    told = Ghost(10)
    for name, job in (("a1", "a"), ("b1", "b"), ("c1", None)):
        told.arrives(0.0, name, job)
    told.runs("a1", 0.0, 10.0, range(6))
    told.runs("c1", 0.0, 1.0, range(200, 204))
    told.runs("b1", 10.0, 20.0, range(100, 106))
    told.arrives(21.0, "a2", "a")
    told.runs("a2", 21.0, 22.0, range(6), hit=6)
    # b and the request without a job ran when a had ended, and took all but a's first blocks
    assert told.hits == {"a": [0]}


@pytest.mark.parametrize(("is_over", "hit"), [(True, 4), (False, 0)])
def test_a_job_that_takes_the_place_of_another_comes_later_if_that_does(
    is_over: bool, hit: int
) -> None:
    """In a batch of two at once the third job begins when one has ended: as it is played, that is
    a second later than it was, and so after the next turn of the other one."""
    told = Ghost(10)
    for name, job in (("a1", "a"), ("b1", "b")):
        told.arrives(0.0, name, job)
    told.runs("a1", 0.0, 1.0, range(6))
    told.runs("b1", 0.0, 1.0, range(100, 106))  # has to wait for a's end as it is played
    if is_over:
        told.over("b")
    told.arrives(1.5, "c1", "c")
    told.runs("c1", 1.5, 1.6, range(200, 206))
    told.arrives(1.9, "a2", "a")
    told.runs("a2", 1.9, 2.0, range(7), hit=6)
    told.arrives(9.0, "other")
    told.runs("other", 9.0, 9.1, range(300, 301))
    assert told.hits == {"a": [hit]}


@pytest.mark.parametrize(("num_blocks", "found"), [(11, 4), (10, 0)])
def test_a_state_takes_a_block_and_nothing_is_found_without_it(num_blocks: int, found: int) -> None:
    """Two contexts of four blocks need eight, one for the state of each end, and one for that of
    the request that runs; what shares a context's first blocks has no state to go on from."""
    told = Ghost(num_blocks, CacheGroup(BLOCK), CacheGroup(BLOCK, 1))
    for at_s, job_id, blocks in ((0.0, "a", range(4)), (2.0, "b", range(100, 104))):
        told.arrives(at_s, f"{job_id}1", job_id)
        told.runs(f"{job_id}1", at_s, at_s + 1.0, blocks)
    told.arrives(4.0, "a2", "a")
    told.runs("a2", 4.0, 5.0, range(4), hit=found)
    told.arrives(6.0, "b2", "b")
    told.runs("b2", 6.0, 7.0, range(100, 103))
    for job_id in "ab":
        told.over(job_id)
    told.now_s = 100.0
    told.ghost.play_if_due()
    assert told.hits == {"a": [found], "b": [0]}


@pytest.mark.parametrize("is_on", [True, False])
def test_the_ghost_can_be_switched_off(is_on: bool) -> None:
    """With `stock_ghost` false no turn is compared, and nothing is kept of them."""
    engine = Engine(num_blocks=64, policy="agentkv", stock_ghost=is_on)
    context = engine.turn(prompt_of(200), job_id="a")
    engine.turn(context + prompt_of(40, salt=3), job_id="a")
    assert (engine.totals.get("compared_tokens_total", 0) > 0) == is_on


def test_turns_beyond_its_bound_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one request runs on, the ghost keeps as many other turns as it may and no more."""
    monkeypatch.setattr(ghost, "MAX_UNPLAYED", 3)
    told = Ghost(100)
    told.arrives(0.0, "long")
    for number in range(10):
        told.arrives(1.0 + number, f"a{number}", "a")
        told.runs(f"a{number}", 1.0 + number, 1.5 + number, range(4))
    assert told.hits == {}
    told.runs("long", 0.0, 20.0, range(50, 60))
    assert len(told.hits["a"]) == 2  # after the first


def test_an_idle_engine_is_woken_for_what_was_played() -> None:
    """It counts a later turn at once, not only when the next request comes."""
    played = Ghost(10)
    played.arrives(0.0, "a", "job")
    played.runs("a", 0.0, 1.0, range(3))
    assert not played.woken_s
    played.arrives(2.0, "b", "job")
    played.runs("b", 2.0, 3.0, range(4), hit=3)
    assert played.woken_s == [3.0]


def test_an_idle_engine_plays_on_when_a_next_turn_is_no_longer_awaited() -> None:
    """What came after a job that was held back counts, though no request ends any more."""
    told = Ghost(10)
    told.arrives(0.0, "a1", "a")
    told.arrives(2.0, "b1", "b")
    told.runs("b1", 2.0, 3.0, range(3))
    told.arrives(5.0, "b2", "b")
    told.runs("b2", 5.0, 6.0, range(4), hit=3)
    told.runs("a1", 10.0, 11.0, range(100, 106))
    assert told.hits == {}  # a's second turn could still come before all of b
    assert told.woken_s[-1] == 11.0  # so that the engine sees when it is too late for that
    told.now_s = told.ghost.due_s
    told.ghost.play_if_due()
    assert told.hits == {"b": [3]}
