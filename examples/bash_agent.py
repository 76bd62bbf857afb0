"""A small agent that works in bash, with its KV cache kept warm on the server.

    python examples/bash_agent.py                                    # starts a server of its own
    python examples/bash_agent.py --base-url http://127.0.0.1:8000/v1
    python examples/bash_agent.py --ui                               # and shows the live page
    python examples/bash_agent.py --task "How many lines has main.py?"

The model answers with bash, the agent runs it in a sandbox and appends the output to the
conversation, which only ever grows: each prompt begins with all of the one before. While a tool
runs, the server has nothing to do for this job; `agentkv.session()` is what tells it that the job
goes on, so that the cache is still there for the next turn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from textwrap import indent
from time import monotonic
from typing import TYPE_CHECKING, Any

import openai
from sandbox import CommandResult, Sandbox, open_sandbox

import agentkv
from agentkv.evals.tables import text_table
from agentkv.server.process import ServerProcess

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

PROJECT = Path(__file__).parent / "project"
TOUR = (
    "List the files with ls.",
    "Read main.py with cat.",
    "Search all files for TODO with grep.",
    "Run git status.",
    "Run pytest.",
)
MAX_TASK_TURNS = 10
MAX_REPLY_TOKENS = 96
MAX_OUTPUT_BYTES = 600  # so that ten turns fit into the 4,096 tokens of the demo server
FAILED, BAD_USAGE = 1, 2

SERVER_FLAGS = ("--block-size", "32")  # only full blocks are reused: small ones show it early

COLUMNS = (
    *("turn", "user prompt", "command", "prompt tok", "cached tok", "output tok"),
    *("LLM ms", "tool ms", "exit"),
)
MAX_CELL_CHARS = 30
ALONE = """
One agent alone has the memory to itself: stock vLLM keeps its cache, too, and nothing can be won.
The gain shows when several share it: examples/six_agents.py"""

# Even the smallest models write bash blocks once they have seen a few. All later replies are the
# model's own.
CONVERSATION_START: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You write bash commands. Answer with only a bash block."},
    {"role": "user", "content": "Print the working directory with pwd."},
    {"role": "assistant", "content": "```bash\npwd\n```"},
    {"role": "user", "content": "Read notes.txt with cat."},
    {"role": "assistant", "content": "```bash\ncat notes.txt\n```"},
    {"role": "user", "content": "Search all files for FIXME with grep."},
    {"role": "assistant", "content": "```bash\ngrep -rn FIXME .\n```"},
    {"role": "user", "content": "Run git log."},
    {"role": "assistant", "content": "```bash\ngit log\n```"},
    {"role": "user", "content": "Run date."},
    {"role": "assistant", "content": "```bash\ndate\n```"},
]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn: a reply of the model and the result of its commands.

    `command` is None for a reply without a usable one, a number of tokens if the server did not
    report it, `exit_status` if nothing ran or the time limit came first.
    """

    turn: int
    user_prompt: str
    reply: str
    command: str | None
    output: str
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    llm_s: float
    tool_s: float
    exit_status: int | None


def take_turns(
    job: agentkv.Job[openai.OpenAI],
    model: str,
    prompts: Sequence[str],
    sandbox: Sandbox,
    max_turns: int,
) -> Iterator[TurnRecord]:
    """One turn for each prompt, then more for as long as the model calls tools."""
    messages = list(CONVERSATION_START)
    prompts_left = deque(prompts)
    output = ""

    for turn in range(1, max_turns + 1):
        prompt = prompts_left.popleft() if prompts_left else ""
        messages.append({"role": "user", "content": f"{output}{prompt}"})

        started_s = monotonic()
        reply = job.client.chat.completions.create(
            model=model, messages=messages, max_tokens=MAX_REPLY_TOKENS, temperature=0
        )
        llm_s = monotonic() - started_s
        text = reply.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": text})

        calls = [call for call in agentkv.parse_tool_calls(reply) if call.command]
        results = []
        for call in calls:
            with job.tool(call):  # timed: the server learns how long such commands take
                results.append(sandbox.run(call.command or ""))
        output = "".join(f"Output:\n{describe(result)}\n\n" for result in results)

        usage = reply.usage
        details = usage and usage.prompt_tokens_details
        yield TurnRecord(
            turn=turn,
            user_prompt=prompt,
            reply=text,
            command="\n".join(call.command or "" for call in calls) or None,
            output=output,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=details.cached_tokens if details else None,
            output_tokens=usage.completion_tokens if usage else None,
            llm_s=llm_s,
            tool_s=sum(result.duration_s for result in results),
            exit_status=results[-1].returncode if results else None,
        )
        if not calls and not prompts_left:
            break


def describe(result: CommandResult) -> str:
    """A command's output as the model gets to read it."""
    output = result.output.rstrip() or "(no output)"
    if result.timed_out:
        return f"{output}\n[stopped after {result.duration_s:.0f} s]"
    return output


def main(argv: Sequence[str] | None = None) -> int:
    """0: the job was played to its end; 1: it broke off; 2: it could not begin."""
    options = parse_options(argv)
    # a server started here must not outlive us if a signal ends us
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return FAILED


def run(options: argparse.Namespace) -> int:
    """Finds or starts the server, and plays the job on it; the exit status."""
    # With --json, standard output carries the document and nothing else.
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    with ExitStack() as stack:
        try:
            base_url = options.base_url or start_server(stack, options, say)
            client = stack.enter_context(openai.OpenAI(base_url=base_url, api_key=options.api_key))
            model = choose_model(client, options.model if options.base_url else None)
        except (agentkv.AgentKVError, openai.OpenAIError) as error:
            print(f"cannot begin: {explain(error, options.base_url)}", file=sys.stderr)
            return BAD_USAGE
        if options.ui:
            say(f"watch it at {base_url.rstrip('/')}/agentkv/ui")
            if sys.stdin.isatty():  # the tour takes seconds: time to open the page
                say("Enter lets the agent begin")
                sys.stdin.readline()
        workspace = stack.enter_context(scratch_copy(PROJECT))
        sandbox = open_sandbox(
            workspace, runs_unasked=options.yes, output_limit_bytes=MAX_OUTPUT_BYTES
        )
        if options.yes and not sandbox.is_isolated:
            say("bubblewrap does not work here: commands run with your own rights (--yes)")
        document = play_job(client, model, sandbox, options, say)
        if options.ui and not options.base_url:
            say("\nthe server runs on for the page: Enter or Ctrl-C ends it")
            with suppress(KeyboardInterrupt):
                sys.stdin.readline()
    if options.json:
        print(json.dumps(document))
    return FAILED if document["problem"] else 0


def play_job(
    client: openai.OpenAI,
    model: str,
    sandbox: Sandbox,
    options: argparse.Namespace,
    say: Callable[..., None],
) -> dict[str, Any]:
    """Plays the task or the tour as one job, shows it, and returns all there is to tell."""
    prompts = (options.task,) if options.task else TOUR
    max_turns = options.max_turns or (MAX_TASK_TURNS if options.task else len(TOUR))
    records: list[TurnRecord] = []
    problem = None

    with agentkv.session(client, expected_turns=max_turns) as job:
        job.limit_turns(max_turns)  # a promise: after that turn the server need keep nothing
        try:
            for record in take_turns(job, model, prompts, sandbox, max_turns):
                records.append(record)
                show_turn(record, say)
        except openai.OpenAIError as error:
            problem = f"turn {len(records) + 1} broke off: {explain(error, options.base_url)}"
    agentkv.flush()  # a server of our own must hear that the job is over before it is stopped

    summary = job.summary()
    say(f"\n{format_turns(records)}\n\n{summary}")
    if options.base_url is None:
        say(ALONE)
    if problem:
        print(problem, file=sys.stderr)
    turns = [asdict(record) for record in records]
    return {"model": model, "problem": problem, "turns": turns, "job": asdict(summary)}


@contextmanager
def scratch_copy(project: Path) -> Iterator[Path]:
    """A copy of a project with everything in it committed, if there is git; deleted on exit."""
    skipped = shutil.ignore_patterns(".git", "__pycache__", ".venv", ".pytest_cache", "*.pyc")
    with tempfile.TemporaryDirectory(prefix="agentkv-", ignore_cleanup_errors=True) as folder:
        workspace = Path(folder) / project.resolve().name
        shutil.copytree(project, workspace, ignore=skipped)
        git = shutil.which("git")
        # neither the user's settings nor the GIT_DIR of a hook around us
        names = [
            f"GIT_{role}_{part}" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
        ]
        environment = {
            "HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            **dict.fromkeys(names, "agent"),
        }
        for words in (["init", "-qb", "main"], ["add", "--all"], ["commit", "-qm", "Start"]):
            if git is not None:
                subprocess.run([git, *words], check=True, cwd=workspace, env=environment)
        yield workspace


def start_server(stack: ExitStack, options: argparse.Namespace, say: Callable[..., None]) -> str:
    """A vLLM server for as long as the stack is open: the demo model, unless another is named."""
    say("starting a server (about a minute on a CPU) ...")
    server = ServerProcess(options.model, args=SERVER_FLAGS)
    return stack.enter_context(server).base_url


def choose_model(client: openai.OpenAI, wanted: str | None) -> str:
    """The model wanted, or the first that the server has; raises AgentKVError for a wrong one."""
    try:
        offered = [model.id for model in client.models.list()]
    except openai.NotFoundError:
        if wanted is None:
            raise agentkv.AgentKVError("the server lists no models: give --model") from None
        return wanted
    except (AttributeError, TypeError, ValueError) as error:  # a page of something else
        raise agentkv.AgentKVError(
            f"{client.base_url} answers, but lists no models: is it the base URL of an "
            "OpenAI-compatible server (ending in /v1)?"
        ) from error
    if not offered:
        raise agentkv.AgentKVError("the server has no model")
    if wanted is not None and wanted not in offered:
        raise agentkv.AgentKVError(f"no model {wanted!r}; the server has {', '.join(offered)}")
    return wanted or offered[0]


def explain(error: Exception, base_url: str | None) -> str:
    """An error in one line, with the address where it is one of reaching the server."""
    if isinstance(error, openai.APIConnectionError):
        return f"no answer from {base_url} ({error.__cause__ or error})"
    return str(error)


def show_turn(record: TurnRecord, say: Callable[..., None]) -> None:
    """One turn as it happens."""
    say(f"\n[{record.turn}] {record.user_prompt or '(the output of the tool)'}")
    if record.command is None:
        say(f"no usable command in this reply:\n{indent(record.reply, '    ')}")
    else:
        say(f"{indent(record.command, '  $ ')}\n{indent(record.output.rstrip(), '    ')}")


def format_turns(records: Iterable[TurnRecord]) -> str:
    """The turns as a text table, with a dash for what is unknown."""
    rows = [
        [
            one.turn,
            " ".join(one.user_prompt.split())[:MAX_CELL_CHARS],
            " ".join((one.command or "(no command)").split())[:MAX_CELL_CHARS],
            one.prompt_tokens,
            one.cached_tokens,
            one.output_tokens,
            f"{one.llm_s * 1e3:.0f}",
            f"{one.tool_s * 1e3:.0f}",
            one.exit_status,
        ]
        for one in records
    ]
    cells = [["-" if value is None else value for value in row] for row in rows]
    return text_table(COLUMNS, cells, left=3)


def parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--task", help="what to do; without it, five prompts about the project")
    parser.add_argument(
        "--base-url", help="an OpenAI-compatible server; without it, one is started"
    )
    parser.add_argument("--model", help="the model's name there, or the model to start")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "none"))
    parser.add_argument("--max-turns", type=positive, help="end the job after this many turns")
    parser.add_argument(
        "--yes", action="store_true", help="where no sandbox works, run commands without asking"
    )
    parser.add_argument(
        "--ui",
        action="store_true",
        help="print the address of the live page; a server that was started here goes on after "
        "the job until Enter or Ctrl-C",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    """A whole number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
