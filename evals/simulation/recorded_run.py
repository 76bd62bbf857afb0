"""One policy's simulation, with its rows on disk as its jobs end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

from ..outcomes import JobOutcome, RunOutcome
from ..rows import RUN_FILE, TURNS_FILE, RunWriter, row_facts
from .errors import StuckError
from .options import SimulationPlan
from .policies import PolicyChoice
from .progress import ShowJobs, progress
from .run import RunOptions, SimulatedRun, Simulation

RECORD_EVENTS = 5_000_000
RECORD_FILE = "timestamps.json"


def run_recorded(
    plan: SimulationPlan,
    policy: PolicyChoice,
    *,
    alone_s: Mapping[str, float],
    metadata: Mapping[str, Any],
) -> tuple[RunOutcome, str | None]:
    """The run, and why it ended early if it did: interrupted, stuck, or the disk full."""
    options = RunOptions(
        has_jumps=plan.has_jumps,
        dram_gib=plan.dram_gib,
        record_events=RECORD_EVENTS if plan.has_record and plan.out is not None else 0,
    )
    simulation = Simulation(plan.workload, plan.machine, policy, options, alone_s=alone_s)
    folder = folder_of(plan.out, policy)
    facts = row_facts(policy.name, plan.described, metadata)
    writer = None if folder is None else RunWriter(folder, facts, force=plan.has_force)
    with writer or nullcontext(), progress(policy.name, len(plan.workload.jobs)) as show:
        reason = _play(simulation, writer, show)
        result = simulation.result()
        machine = simulation.machine.as_dict()
        facts = {**metadata, "machine": machine, "num_blocks": machine["num_blocks"]}
        run = RunOutcome(policy.name, plan.described, result.jobs, result.counters, facts)
        if writer is not None and folder is not None:
            reason = _told(lambda: _finish(writer, folder, run, result)) or reason
    return run, reason and f"{policy.name}: {reason}"


def _play(simulation: Simulation, writer: RunWriter | None, show: ShowJobs) -> str | None:
    def job_ended(job: JobOutcome, num_ended: int) -> None:
        if writer is not None:
            writer.add_job(job)
        show(simulation.num_arrived, num_ended, simulation.now_s)

    return _told(lambda: simulation.run(on_job_end=job_ended))


def _told(action: Callable[[], object]) -> str | None:
    """Do it; what kept it from being done, if anything did that leaves results worth keeping."""
    try:
        action()
    except KeyboardInterrupt:
        return "interrupted"
    except (StuckError, OSError) as error:
        return str(error)
    return None


def _finish(writer: RunWriter, folder: Path, run: RunOutcome, result: SimulatedRun) -> None:
    for job in result.jobs:
        if job.status == "cut":
            writer.add_job(job)
    writer.finish(run)
    if result.record is not None and result.record["jobs"]:
        text = json.dumps(result.record) + "\n"
        (folder / RECORD_FILE).write_text(text, encoding="utf-8")


def folder_of(out: Path | None, policy: PolicyChoice) -> Path | None:
    """Where a policy's files go; None where none are wanted."""
    return None if out is None else out / re.sub(r"[^\w.+@-]", "-", policy.name)


def check_folders(plan: SimulationPlan) -> None:
    """Before minutes of work: nothing there may be in the way. Raises AgentKVError."""
    for policy in plan.policies:
        folder = folder_of(plan.out, policy)
        for name in (RUN_FILE, TURNS_FILE):
            if folder is not None and (folder / name).exists() and not plan.has_force:
                raise AgentKVError(f"{folder / name} exists: choose another --out, or --force")
