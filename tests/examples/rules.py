"""The example policies by class name, and an engine as they see it, set by hand."""

import ast
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentkv.policies import Job, Pin, Policy, RestoreCost, Turn, load_policy
from agentkv.policies.jobs import Context

FOLDER = Path(__file__).parents[2] / "examples" / "policies"


def _policy_names() -> dict[str, str]:
    """Class -> name that `--policy` takes: a file's last class is its policy."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        nodes = ast.parse(path.read_text(encoding="utf-8")).body
        class_name = [node.name for node in nodes if isinstance(node, ast.ClassDef)][-1]
        found[class_name] = f"{path}:{class_name}"
    return found


NAMES = _policy_names()


@dataclass
class StillEngine:
    """An EngineView of 100 blocks of 10 tokens in which nothing happens by itself."""

    now_s: float = 1000.0
    num_blocks: int = 100
    num_free_blocks: int = 100
    block_tokens: int = 10
    jobs: list[Job] = field(default_factory=list)
    pins: list[Pin[Any]] = field(default_factory=list)
    service: dict[str, float] = field(default_factory=dict)

    @property
    def turns(self) -> Collection[Turn]:
        return [turn for job in self.jobs for turn in job.live.values()]

    def job(self, job_id: str) -> Job | None:
        return next((job for job in self.jobs if job.job_id == job_id), None)

    def add_job(self, job_id: str, context_tokens: int = 0, *, idle_s: float | None = None) -> Job:
        """Add a job that has run; `idle_s` ago its last turn ended, None: it never had one."""
        job = Job(job_id, len(self.jobs), context_tokens=context_tokens, has_run=True)
        job.finished_s = None if idle_s is None else self.now_s - idle_s
        self.jobs.append(job)
        return job

    def add_turn(
        self,
        job: Job,
        *,
        prompt_tokens: int = 0,
        waited_s: float = 0.0,
        running_s: float | None = None,
    ) -> Turn:
        """Add a turn that has waited, or that has been running."""
        job.num_turns += 1
        order = 100 + len(self.turns)
        arrived_s = self.now_s - waited_s - (running_s or 0.0)
        prompt_tokens = prompt_tokens or job.context_tokens
        turn = Turn(f"{job.job_id}#{job.num_turns}", job, order, arrived_s, prompt_tokens)
        turn.admitted_s = None if running_s is None else self.now_s - running_s
        job.live[turn.request_id] = turn
        return turn

    def add_pin(self, job: Job, num_blocks: int = 5, *, pinned_s_ago: float = 0.0) -> Pin[Any]:
        pinned_s = self.now_s - pinned_s_ago
        blocks = list(range(num_blocks))
        pin = Pin(job.job_id, job.order, blocks, 0, pinned_s, pinned_s + 300.0, num_blocks)
        self.pins.append(pin)
        return pin

    def end(self, policy: Policy, turn: Turn, served_s: float, context_tokens: int = 0) -> None:
        """End a turn as retention does: the job is up to date before the policy hears of it."""
        turn.job.live.pop(turn.request_id, None)
        num_tokens = context_tokens or turn.job.context_tokens
        turn.job.finish_turn(self.now_s, Context([], num_tokens, 1, [], turn.num_prompt_tokens))
        policy.turn_finished(turn, served_s)


def bound(class_name: str, engine: StillEngine, **settings: Any) -> Any:
    """The policy of that class with these settings, bound to an engine."""
    policy_class = load_policy(NAMES[class_name])
    pool_tokens = engine.num_blocks * engine.block_tokens
    policy = policy_class(policy_class.settings_class(**settings), pool_tokens)
    policy.bind(engine)
    return policy


def cost(num_tokens: int, compute_s: float) -> RestoreCost:
    return RestoreCost(num_tokens, compute_s)
