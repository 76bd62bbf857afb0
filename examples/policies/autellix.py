"""The job that the model has served least goes first, in a few levels of service.

Source: Autellix (arXiv 2502.13965), its scheduling sections and algorithm: PLAS, and ATLAS with
`{"path": true}`. PLAS adds up the seconds of model time of a job's finished turns, sub-agents
included; ATLAS takes the longest chain of turns instead, kept as one number per job: a sub-agent's
chain begins with the number of its job. The sum decides the level; inside one, first come, first
served. A turn that runs through its level falls to the next. A turn that has waited, with its job,
`promote_after` times as long as both were served goes to the first level.

Left open in the text: the number of levels, their bounds and the factor of promotion; the values
in the settings are ours. Time between admission and end counts as service, a preemption included.
Not in it: swapping those that lose their place to the CPU, steps of several tokens between two
decisions (here levels are looked at each second), and the choice of a replica.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from pydantic import Field

from agentkv.policies import UNPINNED, Job, Policy, Rank, Settings, Turn


class AutellixSettings(Settings):
    levels_s: tuple[float, ...] = Field((1.0, 4.0, 16.0, 64.0), strict=False)
    """Seconds of service with which a job leaves each level but the last, in rising order."""
    promote_after: float = Field(2.0, gt=0)
    """Waiting over service from which on a turn goes to the first level."""
    path: bool = False
    """ATLAS: the longest chain of turns counts instead of the sum over all."""


class Autellix(Policy):
    """Program-level attained service; KV is left to the cache."""

    settings_class = AutellixSettings
    settings: AutellixSettings
    tick_s = 1.0

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self._served_s: defaultdict[str, float] = defaultdict(float)
        """Service by program, which is the job at the root of its sub-agents."""
        self._waited_s: defaultdict[str, float] = defaultdict(float)
        self._chain_s: dict[str, float] = {}
        """Length of the chain that ends with each job's last turn."""
        self._roots: dict[str, str] = {}
        self._promoted: set[str] = set()
        self._levels: dict[str, int] = {}
        """Levels of running turns at the last tick."""

    def program_of(self, job: Job) -> str:
        """The job at the root; a sub-agent keeps it when its parent has ended."""
        if job.job_id not in self._roots:
            parent_id = job.parent_job_id
            root = job.job_id if parent_id is None else self._roots.get(parent_id, parent_id)
            self._roots[job.job_id] = root
            self._chain_s[job.job_id] = self._served_s[root]
        return self._roots[job.job_id]

    def level(self, turn: Turn, running_s: float = 0.0) -> int:
        if turn.request_id in self._promoted:
            return 0
        served_s = self._served_s[self.program_of(turn.job)] + running_s
        return bisect_right(self.settings.levels_s, served_s)

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        return (UNPINNED + self.level(turn), turn.order, 0)

    def victim_rank(self, turn: Turn) -> Rank:
        """The highest level, then the newest turn is preempted first."""
        level = self._levels.setdefault(turn.request_id, self.level(turn))
        return (UNPINNED + level, turn.order, 0)

    def sorts_running(self) -> bool:
        return True

    def tick(self) -> bool:
        """Promote turns that wait too long, and let running ones fall."""
        now_s = self.engine.now_s
        for turn in self.engine.turns:
            if turn.admitted_s is not None:
                self._levels[turn.request_id] = self.level(turn, now_s - turn.admitted_s)
                continue
            program = self.program_of(turn.job)
            waited_s = self._waited_s[program] + now_s - turn.arrived_s
            if waited_s >= self.settings.promote_after * self._served_s[program]:
                self._promoted.add(turn.request_id)
        return True

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        program = self.program_of(turn.job)
        job_id = turn.job.job_id
        self._chain_s[job_id] += served_s
        if self.settings.path:
            self._served_s[program] = max(self._served_s[program], self._chain_s[job_id])
        else:
            self._served_s[program] += served_s
        if turn.admitted_s is not None and turn.request_id not in self._promoted:
            self._waited_s[program] += turn.admitted_s - turn.arrived_s
        self._promoted.discard(turn.request_id)
        self._levels.pop(turn.request_id, None)

    def job_ended(self, job: Job) -> None:
        self._roots.pop(job.job_id, None)
        self._chain_s.pop(job.job_id, None)
        if job.job_id not in self._roots.values():
            self._served_s.pop(job.job_id, None)
            self._waited_s.pop(job.job_id, None)
