"""`agentkv simulate`: the same jobs under each policy, on vLLM's scheduler with a virtual clock.

`plan` reads the flags, `run` plays what they describe; here the results are shown.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.command_line import DONE, FAILED, print_result
from agentkv.errors import RunError

from ..comparison import compare, table
from ..outcomes import ROLE_KEYS, RunOutcome, summarize
from .plan import SimulationPlan, make_plans
from .plan import parser as _parser

KEYS = (
    *("jobs", "completed", "failed", "cut"),
    *("mean_s", "p50_s", "p90_s", "p95_s", "p99_s", "max_s", "slowdown_p99", "slowdown_max"),
    *("ttft_first_p99_s", "ttft_first_max_s"),
    *("ttft_continuing_p99_s", "ttft_continuing_max_s"),
    *("hit_rate", "preemptions", "recomputed_tokens", "tokens_per_s"),
)
"""What the document says of each policy."""
SWEEP_FIGURES = ("sweep", "saved", "policies")


def main(argv: Sequence[str]) -> int:
    """0: all jobs done; 1: some failed, or it ended early. Raises before the first is simulated."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    logging.getLogger("vllm.triton_utils").setLevel(logging.ERROR)  # that it has none for CPUs
    if argv[:1] == ["calibrate"]:
        from .calibrate import main as calibrate  # loads scipy

        return calibrate(argv[1:])
    flags = _parser().parse_args(argv)
    plans = make_plans(flags)
    from .run import play  # loads vLLM, which takes seconds: the flags are good by now

    documents, is_done = [], True
    for plan in plans:
        try:
            runs = play(plan)
        except (RunError, OSError) as error:
            print(f"agentkv simulate: ended early: {error}", file=sys.stderr)
            return FAILED
        documents.append(_document(plan, runs))
        if not flags.json:
            print(_text(plan, runs), flush=True)
        is_done &= all(job.status == "done" for run in runs for job in run.jobs)
    if flags.json:
        print_result(documents[0] if flags.sweep is None else documents, "", is_json=True)
    if flags.sweep is not None:
        _draw(Path(flags.out))
    return DONE if is_done else FAILED


def _document(plan: SimulationPlan, runs: Sequence[RunOutcome]) -> dict[str, Any]:
    from .vllm_scheduler import VLLM_VERSION

    return {
        "workload": plan.described,
        "machine": plan.machine.as_dict(),
        "seed": plan.workload.seed,
        "policies": {run.policy: policy_entry(summarize(run), run.server) for run in runs},
        "metadata": plan.metadata(VLLM_VERSION),
    }


def policy_entry(summary: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    """One policy in the document."""
    noted = ("reloads", "reloaded_tokens", "policy_faults_total")
    seen = {name: server[name] for name in noted if server.get(name)}
    of_roles = {key: summary[key] for key in ROLE_KEYS if key in summary}
    return {**{key: summary[key] for key in KEYS}, **of_roles, **seen}


def _text(plan: SimulationPlan, runs: Sequence[RunOutcome]) -> str:
    """The table, and what it says in words, with the load that it is about."""
    results = compare(runs, plan.policies[0].name)
    means_s = {each.policy: spread.mean for each in results if (spread := each.values["mean_s"])}
    first = plan.policies[0].name
    if first not in means_s:
        said = "No job was completed."
    elif not any(run.server["preemptions"] or run.server["recomputed_tokens"] for run in runs):
        peak = max(run.server["peak_blocks"] / run.metadata["num_blocks"] for run in runs)
        flag = "--jps" if plan.workload.concurrency is None else "--concurrency"
        said = (
            f"{plan.load()}: memory was never short: at most {math.ceil(100 * peak)}% of the pool "
            "was taken, and no turn computed again what an earlier one had. "
            f"Raise {flag}, or lower --blocks."
        )
    else:
        fastest = min(means_s, key=means_s.__getitem__)
        ratio = round(means_s[first] / means_s[fastest], 2)
        said = f"{plan.load()}: {fastest}: the mean job is done {ratio:.2f} times as fast as "
        said += f"under {first}."
        if ratio == 1.0:
            said = f"{plan.load()}: No other policy does the mean job faster than {first}: "
            said += f"{means_s[first]:.1f} s."
    return f"{table(results, first)}\n{said}"


def _draw(folder: Path) -> None:
    from ..commands.plot import main as plot  # loads seaborn

    kinds = [word for kind in SWEEP_FIGURES for word in ("--kind", kind)]
    plot([str(folder), *kinds, "--out", str(folder), "--force"])
