"""Whom agentkv speaks to: the server that the user named, and nobody else."""

import json
import subprocess
import sys

import pytest

from agentkv.cli import COMMANDS
from tests.scripted_server import ScriptedServer

WATCH = """
import json, sys
reached = set()
def watch(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        reached.add(str(args[1]))
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        reached.add(str(args[0]))
sys.addaudithook(watch)
"""
"""All addresses and names that the process asks the system for from now on."""

IMPORTS = """
import importlib, pathlib, agentkv
others = ("agents", "evals", "testing")
root = pathlib.Path(agentkv.__file__).parent
rooms = [root, *(path for path in root.iterdir() if path.name not in others)]
paths = [path for room in rooms for path in room.glob("*.py")]
for path in paths:
    importlib.import_module("agentkv." + ".".join(path.relative_to(root).with_suffix("").parts))
assert "agentkv.client.delivery" in sys.modules and len(paths) > 60, paths
print(json.dumps(sorted(reached)))
"""

SESSION = """
import asyncio, openai, agentkv
options = {"base_url": sys.argv[1], "api_key": "key", "max_retries": 0}
request = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
with agentkv.session(openai.OpenAI(**options), job_id="a") as job:
    job.client.chat.completions.create(**request)
    with job.tool("curl http://example.com"):
        pass
    list(job.client.chat.completions.create(**request, stream=True))
async def main():
    async with agentkv.session(openai.AsyncOpenAI(**options), job_id="b") as job:
        await job.client.chat.completions.create(**request)
        async with job.tool("ls"):
            pass
asyncio.run(main())
assert agentkv.flush(30.0)
print(json.dumps(sorted(reached)))
"""

HELP = """
import contextlib, io
from agentkv.cli import main
for words in json.loads(sys.argv[1]):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    assert "usage" in shown.getvalue().lower(), words
print(json.dumps(sorted(reached)))
"""


def reached_by(code: str, *arguments: str) -> list[str]:
    """Addresses and names that a process running this code reached for."""
    command = [sys.executable, "-c", WATCH + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_importing_the_client_reaches_for_nothing() -> None:
    """Every module but those of vLLM's plugin, of measurements, fakes, and agents of others."""
    assert reached_by(IMPORTS) == []


def test_a_session_reaches_for_the_server_alone() -> None:
    """Calls, streams, tool events and releases, sync and async."""
    with ScriptedServer("hello") as server:
        host, port = server.base_url.removesuffix("/v1").removeprefix("http://").split(":")
        reached = reached_by(SESSION, server.base_url)
        assert {request.route for request in server.requests} >= {
            "/v1/chat/completions",
            "/v1/agentkv/jobs/a/tool",
            "/v1/agentkv/jobs/b/release",
        }
    assert set(reached) <= {host, str((host, int(port)))}
    assert str((host, int(port))) in reached


@pytest.mark.slow
def test_the_commands_help_reaches_for_nothing() -> None:
    """`agentkv --help`, and that of each command but `serve`, which is vLLM's own."""
    commands = [[], *([name] for name in COMMANDS if name != "serve")]
    assert reached_by(HELP, json.dumps(commands)) == []
