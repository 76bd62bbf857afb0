"""Later turns of real servers with a tiny model: seconds to the first token, turns a second.

Servers stand side by side and take turns, so that load on the machine hits all of them; the CPU
time of each API server's process says what load cannot blur.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentkv.integrations.vllm import plugin
from agentkv.server.process import ServerProcess

from .conversation import WINDOW, Conversations, Messages, body_of

SIDES: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "stock": ("fcfs", (), {}),
    "workers2": ("fcfs", ("--renderer-num-workers", "2"), {}),
    "fastokens": ("fcfs", (), {"VLLM_USE_FASTOKENS": "1"}),
    "ours": ("fcfs", (plugin.FRONT_END_FLAG, "64"), {}),
    "servers2": ("fcfs", (plugin.FRONT_END_FLAG, "64", "--api-server-count", "2"), {}),
    "agentkv": ("agentkv", (), {}),
}
"""Policy, flags and environment of each side."""

FLAGS = (
    *("--load-format", "dummy", "--dtype", "bfloat16", "--block-size", "128"),
    *("--max-model-len", str(WINDOW), "--served-model-name", "tiny", "--max-num-seqs", "16"),
)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
}


def measure(
    model: Path,
    sides: Sequence[str] | None,
    sizes: Sequence[int],
    at_once: Sequence[int],
    num_turns: int,
    num_first_turns: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Rows for each size: later turns of a number of conversations at once, which share all but
    their last messages, so that the engine computes a long history once; and first turns of as many
    new conversations, one after the other."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {name: _server(model, name, logs) for name in sides or ("stock", "ours")}
        for server in servers.values():
            stack.callback(server.stop)
            server.start()
        for server in servers.values():
            server.wait_until_ready()
        for size in sizes:
            if num_first_turns:
                yield {
                    **{"tokens": size, "first turns": num_first_turns},
                    **_summary(_play_first(servers, size, num_first_turns, seed + 1)),
                }
            conversations = Conversations(seed)
            shared = conversations.history(size)
            for number in at_once:
                own = [
                    [*shared, *({"role": "user", "content": f"{number} {each}"},)]
                    for each in range(number)
                ]
                yield {
                    **{"tokens": size, "at once": number, "turns": num_turns},
                    **_summary(_play(servers, conversations, own, num_turns)),
                }


def _server(model: Path, name: str, logs: Path) -> ServerProcess:
    policy, flags, environment = SIDES[name]
    return ServerProcess(
        str(model),
        policy=policy,
        args=(*FLAGS, *flags),
        log_path=logs / f"{name}.log",
        environment={**ENVIRONMENT, **environment},
    )


class Round(NamedTuple):
    """What some requests at once took on one server."""

    ttfts_s: list[float]
    wall_s: float
    cpu_s: float
    """Of the API server."""
    replies: list[str]


def _play(
    servers: dict[str, ServerProcess],
    conversations: Conversations,
    own: list[Messages],
    num_turns: int,
) -> dict[str, list[Round]]:
    told: dict[str, list[Round]] = {name: [] for name in servers}
    for turn in range(-2, num_turns):  # a first turn, one that counts not, and then later ones
        bodies = [body_of(messages, temperature=0, ignore_eos=True) for messages in own]
        _ask_all(servers, bodies, told, turn)
        for messages in own:
            conversations.grow(messages)
    return {name: rounds[2:] for name, rounds in told.items()}


def _play_first(
    servers: dict[str, ServerProcess], size: int, number: int, seed: int
) -> dict[str, list[Round]]:
    told: dict[str, list[Round]] = {name: [] for name in servers}
    for each in range(number):
        history = Conversations(seed + each).history(size)
        _ask_all(servers, [body_of(history, temperature=0, ignore_eos=True)], told, each)
    return told


def _ask_all(
    servers: dict[str, ServerProcess],
    bodies: Sequence[bytes],
    told: dict[str, list[Round]],
    number: int,
) -> None:
    """Send the same to one server after the other, every other time from the last one on."""
    for name in list(servers) if number % 2 else list(servers)[::-1]:
        told[name].append(_round(servers[name], bodies))
    replies = {tuple(rounds[-1].replies) for rounds in told.values()}
    if len(bodies) == 1 and len(replies) > 1:  # with several a batch may round otherwise
        raise SystemExit(f"greedy replies differ: {replies}")


def _summary(told: dict[str, list[Round]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, rounds in told.items():
        first_s = [seconds for each in rounds for seconds in each.ttfts_s]
        at_once = len(rounds[0].ttfts_s)
        cpu_s = statistics.median(each.cpu_s for each in rounds) / at_once
        row[name] = {
            "ttft_s": [round(value, 4) for value in np.percentile(first_s, (25, 50, 75))],
            "turns_per_s": round(statistics.median(at_once / each.wall_s for each in rounds), 2),
            "api_cpu_ms": round(cpu_s * 1e3, 1),
        }
    return row


def _round(server: ServerProcess, bodies: Sequence[bytes]) -> Round:
    ttfts, texts = [0.0] * len(bodies), [""] * len(bodies)

    def ask(number: int) -> None:
        ttfts[number], texts[number] = _first_token_s(server, bodies[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(bodies))]
    cpu_s, began_s = _cpu_s(server), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Round(ttfts, time.perf_counter() - began_s, _cpu_s(server) - cpu_s, texts)


def _first_token_s(server: ServerProcess, body: bytes) -> tuple[float, str]:
    """Seconds to the first token, and the reply's text."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=900)
    try:
        began_s = time.perf_counter()
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{server.name}: {response.status} {response.read()[:300]!r}")
        text = b""
        while text.count(b"data:") < 2:  # the first has the role alone
            text += response.read1()
        seconds = time.perf_counter() - began_s
        text += response.read()
    finally:
        connection.close()
    events = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return seconds, "".join(choice["delta"].get("content") or "" for choice in choices)


def _cpu_s(server: ServerProcess) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def describe(row: dict[str, Any]) -> str:
    """A line for each side."""
    what = ", ".join(f"{row[key]} {key}" for key in row if key not in SIDES)
    lines = [what]
    for name in SIDES:
        if name in row:
            side = row[name]
            low, median, high = side["ttft_s"]
            lines.append(
                f"  {name:9} TTFT {median:.3f} s ({low:.3f} to {high:.3f}), "
                f"{side['turns_per_s']:.2f} turns/s, {side['api_cpu_ms']:.0f} ms of CPU a turn in "
                "the API server"
            )
    return "\n".join(lines)
