"""The grid of a study, from its `study.toml`: regimes, seeds, policies, and the units to play.

A regime is jobs, how they arrive, and the machine that serves them; a unit is one policy in one
regime with one seed. Knows nothing of rows or of how a unit is played. README.md has the format.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from agentkv.errors import InputError
from agentkv.evals.simulator.alone import alone_s, held_alone, mean_tokens
from agentkv.evals.simulator.cost import StepBatch
from agentkv.evals.simulator.machine import Limits, Machine, make_machine
from agentkv.evals.workload.plans import JobPlan, Workload, deal_jobs, with_children
from agentkv.evals.workload.workloads import make_workload

FOOTPRINT_JOBS, FOOTPRINT_SEED = 200, 0
"""The jobs from which 1x is computed, for any seeds and number of jobs of a study."""
DEFAULT_WORKLOAD = "swebench"
FIGURES = ("mean_s", "p99_s", "ttft_first_p99_s", "ttft_continuing_p99_s")


@dataclass(frozen=True, slots=True)
class Regime:
    """One place of the grid. Of `multiple`, `jps` and `concurrency` one says how jobs arrive.

    `multiple` is of 1x, the rate at which memory and GPU are just enough for such jobs.
    """

    name: str
    workload: str = DEFAULT_WORKLOAD
    trace: str | None = None
    """File of the workload "trace", from the root of the checkout."""
    num_jobs: int = 80
    pool_blocks: int | None = None
    tools: str | None = None
    max_turns: int | None = None
    max_context_tokens: int | None = None
    token_scale: float = 1.0
    multiple: float | None = None
    jps: float | None = None
    concurrency: int | None = None
    arrivals: str | None = None
    clients: Mapping[str, float] | None = field(default=None, hash=False)
    """Loads of clients, in proportion to which the jobs are dealt to them."""
    gpu: str = "h100"
    model: str | None = None
    num_gpus: int = 1
    dram_gib: float | None = None
    """Size of the tier that every policy has; None: only those that end in +offload, 64 GiB."""

    def facts(self) -> dict[str, Any]:
        """All that decides its jobs and its machine, without what is as by default."""
        defaults = {each.name: each.default for each in fields(Regime)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    def machine(self) -> Machine:
        """The simulated server. Raises InputError."""
        return make_machine(
            self.gpu, self.model, Limits(num_blocks=self.pool_blocks, num_gpus=self.num_gpus)
        )

    def jobs(self, seed: int, **changes: Any) -> Workload:
        """The jobs of a seed, as they arrive. Raises InputError."""
        rate = {"jps": self.rate_jps(), "concurrency": self.concurrency, "arrivals": self.arrivals}
        made = make_workload(
            self.workload,
            seed=seed,
            **{"num_jobs": self.num_jobs, **rate, **changes},
            max_turns=self.max_turns,
            trace=None if self.trace is None else Path(self.trace),
            tools=self.tools,
            max_context_tokens=self.max_context_tokens,
            token_scale=self.token_scale,
        )
        return made if self.clients is None else deal_jobs(made, self.clients)

    def rate_jps(self) -> float | None:
        """Jobs per second that arrive; None where others say when."""
        if self.multiple is None:
            return self.jps
        return self.multiple * _one_x_jps(replace(self, multiple=None))


@lru_cache
def _one_x_jps(regime: Regime) -> float:
    sample = {"num_jobs": FOOTPRINT_JOBS, "jps": 1.0, "concurrency": None, "arrivals": None}
    return enough_jps(regime.jobs(FOOTPRINT_SEED, **sample).jobs, regime.machine())


def enough_jps(jobs: Sequence[JobPlan], machine: Machine) -> float:
    """Jobs per second for which the server is just enough: the lower of what its pool and its GPU
    carry. Above it memory runs short, or turns queue for the GPU.

    Memory by Little's law: contexts held = rate x token-seconds of a job. Compute: each token of a
    job once, prompts in full batches, outputs in batches of as many contexts as the pool holds.
    """
    held = [held_alone(job, machine) for job in jobs]
    token_s, num_tokens = fmean(token_s for token_s, _ in held), mean_tokens(held)
    num_resident = int(machine.pool_tokens / num_tokens)
    num_decodes = max(1, min(machine.max_num_seqs, num_resident))
    prefills, decodes = StepBatch(), StepBatch()
    prefills.add_prefill(machine.max_num_batched_tokens, int(num_tokens))
    for _ in range(num_decodes):
        decodes.add_decode(int(num_tokens))
    prefill_tokens = fmean(sum(turn.added_tokens for turn in job.turns) for job in jobs)
    output_tokens = fmean(sum(turn.output_tokens for turn in job.turns) for job in jobs)
    work_s = (
        prefill_tokens * machine.cost.step_s(prefills) / machine.max_num_batched_tokens
        + output_tokens * machine.cost.step_s(decodes) / num_decodes
    )
    return min(machine.pool_tokens / token_s, 1.0 / work_s)


@dataclass(frozen=True, slots=True)
class Unit:
    """One simulation."""

    regime: Regime
    seed: int
    policy: str

    def facts(self) -> dict[str, Any]:
        """The unit as its row has it. A policy of a file is called by its class."""
        regime = self.regime.facts()
        name = self.policy.rpartition(".py:")[2]
        return {"regime": regime.pop("name"), **regime, "seed": self.seed, "policy": name}

    @property
    def key(self) -> str:
        """Hash of all that decides the result, except the code."""
        text = json.dumps(self.facts(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.regime.name}, seed {self.seed}, {self.facts()['policy']}"

    def workload(self) -> tuple[Workload, dict[str, float]]:
        """The jobs, and the seconds that each takes alone."""
        return _played(self.regime, self.seed)


@lru_cache(maxsize=4)
def _played(regime: Regime, seed: int) -> tuple[Workload, dict[str, float]]:
    made, machine = regime.jobs(seed), regime.machine()
    return made, {job.job_id: alone_s(job, machine) for job in with_children(made.jobs)}


@dataclass(frozen=True, slots=True)
class Group:
    """Regimes that are played under the same policies with the same seeds."""

    regimes: tuple[Regime, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """A grid, and what its tables show: `figures`, each over that of the policies in `over`."""

    title: str
    groups: tuple[Group, ...]
    over: tuple[str, ...]
    figures: tuple[str, ...]

    def units(self) -> Iterator[Unit]:
        """Seed by seed, all policies of a regime together: a study that is cut has whole ones."""
        for seed in sorted({seed for group in self.groups for seed in group.seeds}):
            for group in self.groups:
                if seed in group.seeds:
                    for regime, policy in itertools.product(group.regimes, group.policies):
                        yield Unit(regime, seed, policy)


def read_study(path: Path) -> Study:
    """The study of a TOML file. Raises InputError, which names the file and the key."""
    try:
        given: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        of_all = [name for name in ("policies", "seeds") if name in given]
        shared: dict[str, Any] = {name: given.pop(name) for name in of_all}
        title, over = given.pop("title"), tuple(given.pop("over", ("fcfs",)))
        figures, groups = tuple(given.pop("figures", FIGURES)), given.pop("regimes")
        if given:
            raise InputError(f"unknown keys: {', '.join(given)}")
        return Study(title, tuple(_group({**shared, **each}) for each in groups), over, figures)
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]} is missing") from error
    except (OSError, TypeError, InputError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: {error}") from error


def _group(given: dict[str, Any]) -> Group:
    """The regimes of one table: a list, or a table of names, is an axis of the grid."""
    policies, seeds = tuple(given.pop("policies")), tuple(given.pop("seeds"))
    clients = given.pop("clients", None)
    name = given.pop("name", given.get("workload", DEFAULT_WORKLOAD))
    axes = {
        name: _axis(name, each) for name, each in given.items() if isinstance(each, list | dict)
    }
    fixed = {name: value for name, value in given.items() if name not in axes}
    regimes = []
    for chosen in itertools.product(*axes.values()):
        labels = [label for label, _ in chosen]
        whole = ", ".join([name, *labels] if isinstance(name, str) else labels)
        values = dict(zip(axes, (value for _, value in chosen), strict=True))
        regimes.append(Regime(whole, **fixed, **values, clients=clients))
    return Group(tuple(regimes), policies, seeds)


def _axis(name: str, given: Sequence[Any] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The values of an axis, each with what a regime's name says of it."""
    if isinstance(given, Mapping):
        return list(given.items())
    forms = {"pool_blocks": "{:,} blocks", "multiple": "{:g}x", "concurrency": "{} at once"}
    forms["jps"] = "{:g} jobs/s"
    return [(forms.get(name, "{}").format(value), value) for value in given]
