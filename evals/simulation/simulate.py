"""`agentkv simulate`: the same jobs under each policy, on vLLM's scheduler with a virtual clock."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from agentkv.errors import AgentKVError

from ..outcomes import RunOutcome
from ..rows import provenance
from ..summary import summarize
from .alone import alone_s
from .options import SimulationPlan, read_plan
from .report import policy_entry, table

DONE, FAILED, BAD_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """0: all jobs done; 1: some failed or were cut; 2: nothing could be simulated."""
    argv = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    if argv[:1] == ["calibrate"]:
        from .calibrate import main as calibrate

        return calibrate(argv[1:])
    if argv[:1] == ["study"]:
        from ..study.study import main as study

        return study(argv[1:])
    try:
        plan, is_json_alone = read_plan(argv)
        runs, reason = _run_all(plan)
    except (AgentKVError, OSError) as error:
        print(f"agentkv simulate: {error}", file=sys.stderr)
        return BAD_USAGE
    except ModuleNotFoundError as error:
        print(
            f"agentkv simulate: the package {error.name!r} is missing: it runs vLLM's own "
            "scheduler; run `pip install 'agentkv-serving[vllm,bench]'`",
            file=sys.stderr,
        )
        return BAD_USAGE
    if reason is not None:
        print(f"agentkv simulate: ended early: {reason}", file=sys.stderr)
    result = _document(plan, runs, reason)
    if not is_json_alone:
        print(table(result["policies"]))
    print(json.dumps(result), flush=True)
    is_done = reason is None and all(job.status == "done" for run in runs for job in run.jobs)
    return DONE if is_done else FAILED


def _run_all(plan: SimulationPlan) -> tuple[list[RunOutcome], str | None]:
    """The runs, and why they ended early if they did."""
    # vLLM takes seconds to import: not before the flags are known to be good
    from .recorded_run import check_folders, run_recorded
    from .run import check_pool

    check_folders(plan)
    for policy in plan.policies:
        check_pool(plan.workload, plan.machine, policy, plan.dram_gib)
    metadata = _metadata(plan)
    runs: list[RunOutcome] = []
    try:
        alone = {job.job_id: alone_s(job, plan.machine) for job in plan.workload.jobs}
        for policy in plan.policies:
            run, reason = run_recorded(plan, policy, alone_s=alone, metadata=metadata)
            runs.append(run)
            _warn_of_failures(run)
            if reason is not None:
                return runs, reason
    except KeyboardInterrupt:  # before the first run, or between two
        return runs, "interrupted"
    return runs, None


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


def _document(
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
