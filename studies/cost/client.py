"""What a session adds to a call of the OpenAI SDK, and what `import agentkv` costs.

The calls go over real HTTP to a scripted server on 127.0.0.1; the import runs in fresh
interpreters, taking turns with one that imports only agentkv's dependencies.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import openai

import agentkv
from agentkv.testing import ScriptedServer

from .side_by_side import Row, difference_row, quartiles, timed, without_garbage_collection

CALLS_PER_BLOCK, NUM_BLOCKS = 20, 25
NUM_IMPORTS = 15
TARGET_CALL_MS = 0.3
TARGET_IMPORT_MS = 200.0
HEAVY_MODULES = ("openai", "torch", "vllm")
MESSAGES = [{"role": "user", "content": "List the files. " * 100}]


def measure_calls() -> Iterator[Row]:
    """One row for a session with a client, one for a session that covers every client."""
    with (
        ScriptedServer(["ok"]) as server,
        openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
    ):
        for name, in_session in (
            ("client: a call in session(client)", _with_own_client),
            ("client: a call in session()", _with_any_client),
        ):
            already = len(server.turns)
            yield _compare(name, client, in_session)
            _check_tags([bool(turn.tags) for turn in server.turns[already:]])


Calls = Callable[[openai.OpenAI], list[float]]


def _compare(name: str, client: openai.OpenAI, in_session: Calls) -> Row:
    _calls(client)
    in_session(client)  # connects, and asks the server once
    bare_s: list[float] = []
    ours_s: list[float] = []
    with without_garbage_collection():
        for index in range(NUM_BLOCKS):
            if index % 2:
                bare_s += _calls(client)
                ours_s += in_session(client)
            else:
                ours_s += in_session(client)
                bare_s += _calls(client)
    return difference_row(name, bare_s, ours_s, target_ms=TARGET_CALL_MS)


def _check_tags(are_tagged: list[bool]) -> None:
    """Half the calls carried tags: else the two sides were not what they are called."""
    if sum(are_tagged) * 2 != len(are_tagged):
        raise AssertionError(f"{sum(are_tagged)} of {len(are_tagged)} calls carried tags")


def _calls(client: Any) -> list[float]:
    return [timed(lambda: _call(client))[0] for _ in range(CALLS_PER_BLOCK)]


def _call(client: openai.OpenAI) -> None:
    create: Any = client.chat.completions.create
    create(model="scripted", messages=MESSAGES, max_tokens=16)


def _with_own_client(client: openai.OpenAI) -> list[float]:
    with agentkv.session(client) as job:
        return _calls(job.client)


def _with_any_client(client: openai.OpenAI) -> list[float]:
    try:
        with agentkv.session():
            return _calls(client)
    finally:
        agentkv.uninstrument()


def measure_import() -> Row:
    """Time to `import agentkv`; raises AssertionError if it pulls in a heavy module."""
    ours_ms, dependencies_ms = [], []
    for _ in range(NUM_IMPORTS):
        dependencies_ms.append(_import_ms("httpx, pydantic, tenacity")[0])
        elapsed_ms, heavy = _import_ms("agentkv")
        ours_ms.append(elapsed_ms)
        if heavy:
            raise AssertionError(f"import agentkv pulls in {', '.join(heavy)}")
    low, median, high = quartiles(ours_ms)
    detail = (
        f"without {', '.join(HEAVY_MODULES)}; its dependencies alone: "
        f"{quartiles(dependencies_ms)[1]:.0f} ms"
    )
    return Row(
        "client: import agentkv", median, "ms", low, high, NUM_IMPORTS, TARGET_IMPORT_MS, detail
    )


def _import_ms(names: str) -> tuple[float, list[str]]:
    code = (
        "import time; started_s = time.perf_counter()\n"
        f"import {names}\n"
        "elapsed_s = time.perf_counter() - started_s\n"
        "import json, sys\n"
        f"print(json.dumps([elapsed_s * 1e3, sorted({set(HEAVY_MODULES)!r} & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    elapsed_ms, heavy = json.loads(done.stdout)
    return elapsed_ms, heavy
