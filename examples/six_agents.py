"""Six agents at once on stock vLLM, then on agentkv: what `make demo` ends with.

    python examples/six_agents.py    # two servers one after the other: three minutes

The memory holds about half of what six agents have in the end. Stock vLLM drops the context of the
agent that has been in its tool for longest, and computes it again when the agent returns; agentkv
keeps it, and lets a new agent begin when it fits. Both servers get the same prompts and the same
seconds of each tool, and answer greedily. It is a small `agentkv bench`, whose flags it takes.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError, RunError
from agentkv.evals.commands.bench import read_plan
from agentkv.evals.figures import draw_jobs
from agentkv.evals.outcomes import RunOutcome, summarize
from agentkv.evals.run_table import table_of

TOOLS = Path(__file__).parent / "tool_times.jsonl"  # commands of 1 to 5 s; a turn draws one
OUT = Path("demo-runs")
FLAGS = (
    *("--policy", "fcfs", "--policy", "agentkv", "--repeats", "1"),
    *("--jobs", "6", "--concurrency", "6", "--turns", "7", "--token-scale", "0.5"),
    *("--num-gpu-blocks-override", "120"),  # six jobs end with 258
    *("--tools", str(TOOLS), "--out", str(OUT)),
)
NAMES = {"fcfs": "stock vLLM", "agentkv": "agentkv"}
NEXT = """
next:
  .venv/bin/agentkv simulate --gpu h100    # what it would gain on your GPU, without one
  .venv/bin/agentkv bench                  # more jobs and repeats: 15 minutes
  .venv/bin/agentkv serve                  # a server for your own agent: docs/tutorial.md"""


def main(argv: Sequence[str] = ()) -> int:
    """0: both were measured; 1: one broke off."""
    # a server started here must not outlive us if a signal ends us
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    say("\nsix agents of seven turns, memory for half of them: on stock vLLM, then on agentkv")
    try:
        _, plan = read_plan([*FLAGS, *argv])
        assert plan.out is not None, "servers of one's own have a folder"
        show(plan.play_all(), plan.out)
        return 0
    except AgentKVError as error:
        print(f"broke off: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return 1


def show(runs: Iterable[RunOutcome], out: Path) -> None:
    """Say what came of each run as it ends, then of both, and keep the picture."""
    found: dict[str, Mapping[str, Any]] = {}
    ended: list[RunOutcome] = []
    for run in runs:
        ended.append(run)
        found[run.policy] = summarize(run)
        if found[run.policy]["completed"] < len(run.jobs):
            raise RunError(f"not all jobs under {run.policy} were done: see {out}")
        say(f"{NAMES[run.policy]}: {describe(found[run.policy])}")
    stock, ours = found["fcfs"], found["agentkv"]
    say(f"\n{headline(stock, ours)}")
    picture = draw_jobs(table_of(ended), "fcfs", out / "jobs.svg")
    say(f"both as a picture, a line a job: {picture.resolve()}")
    say(NEXT)


def describe(run: Mapping[str, Any]) -> str:
    """One policy's run in a line."""
    return (
        f"mean job {run['mean_s']:.0f} s, slowest {run['max_s']:.0f} s, "
        f"{cached_share(run):.0%} of prompt tokens from the cache"
    )


def headline(stock: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Both policies side by side in one sentence."""
    return (
        f"stock vLLM -> agentkv: mean job {stock['mean_s']:.0f} s -> {ours['mean_s']:.0f} s, "
        f"{cached_share(stock):.0%} -> {cached_share(ours):.0%} of prompt tokens from the cache"
    )


def cached_share(run: Mapping[str, Any]) -> float:
    """Share of all prompt tokens, those of first turns included."""
    share: float = run["cached_tokens"] / run["prompt_tokens"]
    return share


def say(text: str) -> None:
    """Print at once: the servers' progress goes to standard error."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
