"""`agentkv simulate`: the same jobs under each policy, on vLLM's scheduler with a virtual clock."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

from ..load.outcomes import RunOutcome
from ..load.run_files import RUN_FILE, TURNS_FILE, RunWriter, row_facts
from ..load.summary import summarize
from ..predictor_provenance import provenance
from .alone import alone_s
from .errors import StuckError
from .options import SimulationPlan, read_plan
from .policies import PolicyChoice
from .progress import progress
from .report import policy_entry, table

DONE, FAILED, BAD_USAGE = 0, 1, 2
RECORD_EVENTS = 5_000_000
RECORD_FILE = "timestamps.json"


def main(argv: Sequence[str] | None = None) -> int:
    """0: all jobs done; 1: some failed or were cut; 2: nothing could be simulated."""
    argv = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    if argv[:1] == ["calibrate"]:
        from .calibrate import main as calibrate

        return calibrate(argv[1:])
    try:
        plan, is_json_alone = read_plan(argv)
        _check_folders(plan)
        runs, reason = _run_all(plan)
    except (AgentKVError, OSError) as error:
        print(f"agentkv simulate: {error}", file=sys.stderr)
        return BAD_USAGE
    if reason is not None:
        print(f"agentkv simulate: ended early: {reason}", file=sys.stderr)
    result = document(plan, runs, reason)
    if not is_json_alone:
        print(table(result["policies"]))
    print(json.dumps(result), flush=True)
    is_done = reason is None and all(job.status == "done" for run in runs for job in run.jobs)
    return DONE if is_done else FAILED


def document(
    plan: SimulationPlan, runs: Sequence[RunOutcome], reason: str | None
) -> dict[str, Any]:
    """All there is to know of the runs but their rows."""
    return {
        "workload": plan.described,
        "machine": plan.machine.as_dict(),
        "seed": plan.workload.seed,
        "ended_early": reason,
        "policies": {run.policy: policy_entry(summarize(run), run.server) for run in runs},
        "metadata": _metadata(plan),
    }


def _metadata(plan: SimulationPlan) -> dict[str, Any]:
    """Nothing in it depends on when or where the simulation ran: rows repeat byte for byte."""
    from .real_scheduler import VLLM_VERSION

    where = provenance()
    return {
        "commit": where["commit"],
        "versions": where["versions"] | {"vllm": VLLM_VERSION},
        "is_simulated": True,
        "repeat": 0,
        "config": plan.config,
    }


def _run_all(plan: SimulationPlan) -> tuple[list[RunOutcome], str | None]:
    """The runs, and why they ended early if they did."""
    alone = {job.job_id: alone_s(job, plan.machine) for job in plan.workload.jobs}
    metadata = _metadata(plan)
    runs: list[RunOutcome] = []
    for policy in plan.policies:
        run, reason = _run_policy(plan, policy, alone, metadata)
        runs.append(run)
        _warn_of_failures(run)
        if reason is not None:
            return runs, reason
    return runs, None


def _run_policy(
    plan: SimulationPlan, policy: PolicyChoice, alone: dict[str, float], metadata: dict[str, Any]
) -> tuple[RunOutcome, str | None]:
    # vLLM takes seconds to import: not before the flags are known to be good
    from .run import RunOptions, Simulation

    options = RunOptions(
        has_jumps=plan.has_jumps,
        dram_gib=plan.dram_gib,
        record_events=RECORD_EVENTS if plan.has_record and plan.out is not None else 0,
    )
    facts = row_facts(policy.name, plan.described, metadata)
    folder = _folder(plan.out, policy)
    writer = None if folder is None else RunWriter(folder, facts, force=plan.has_force)
    reason = None
    with writer or nullcontext(), progress(policy.name, len(plan.workload.jobs)) as show:
        simulation = Simulation(plan.workload, plan.machine, policy, options, alone_s=alone)

        def job_ended(job: Any, num_ended: int) -> None:
            if writer is not None:
                writer.add_job(job)
            show(simulation.num_arrived, num_ended, simulation.now_s)

        try:
            simulation.run(on_job_end=job_ended)
        except KeyboardInterrupt:
            reason = f"interrupted under {policy.name}"
        except StuckError as error:
            reason = f"{policy.name}: {error}"
        result = simulation.result()
        machine = simulation.machine.as_dict()
        run = RunOutcome(
            policy.name,
            plan.described,
            result.jobs,
            result.counters,
            {**metadata, "machine": machine, "num_blocks": machine["num_blocks"]},
        )
        if writer is not None:
            for job in result.jobs:
                if job.status == "cut":
                    writer.add_job(job)
            writer.finish(run)
    if folder is not None and result.record is not None and plan.has_record:
        text = json.dumps(result.record) + "\n"
        (folder / RECORD_FILE).write_text(text, encoding="utf-8")
    return run, reason


def _folder(out: Path | None, policy: PolicyChoice) -> Path | None:
    return None if out is None else out / re.sub(r"[^\w.+@-]", "-", policy.name)


def _check_folders(plan: SimulationPlan) -> None:
    """Before hours of work: nothing there may be in the way."""
    for policy in plan.policies:
        folder = _folder(plan.out, policy)
        for name in (RUN_FILE, TURNS_FILE):
            if folder is not None and (folder / name).exists() and not plan.has_force:
                raise AgentKVError(f"{folder / name} exists: choose another --out, or --force")


def _warn_of_failures(run: RunOutcome) -> None:
    failed = [job for job in run.jobs if job.status == "failed"]
    if failed:
        print(
            f"agentkv simulate: {run.policy}: {len(failed)} of {len(run.jobs)} jobs failed, the "
            f"first because of {failed[0].turns[-1].error}; --max-context-tokens keeps jobs short",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
