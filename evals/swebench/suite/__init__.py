"""Six small instances that need no containers: repositories, sandboxes and a server of solutions.

`instances.json` is a dataset like any other. `repositories` holds plain files, bugs included, of
which the commits are made that the instances name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agentkv.agents.sandbox import CLEAN_ENVIRONMENT, bubblewrap_options, find_bubblewrap

from ..instances import SANDBOX, Instance, SwebenchError

MODEL_CONFIG = Path(__file__).with_name("demo_model.yaml")
"""mini-swe-agent's configuration for the 135M demo model."""
TESTBED = "/testbed"
"""Where SWE-bench's images have the repository; prompts and eval scripts name this path."""
_REPOSITORIES = Path(__file__).with_name("repositories")
_MAKE_PATCH = "git add --intent-to-add . && git diff > patch.txt && cat patch.txt"
_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"


def working_bubblewrap() -> str:
    """Return the program; SwebenchError if none works here."""
    program = find_bubblewrap()
    if program is None:
        raise SwebenchError("no bubblewrap works here: install it, or allow user namespaces")
    return program


def sandbox_settings(instance: Instance, scratch: Path) -> dict[str, Any]:
    """Make an instance's repository at its commit; return the settings of its bubblewrap.

    A command sees programs, the running Python, the repository and a /tmp that lasts: no network,
    no other files of the host. Raises SwebenchError, or CalledProcessError with git's words.
    """
    name = instance["instance_id"]
    owner, _, project = instance["repo"].partition("/")
    files = _REPOSITORIES / project
    if owner != "agentkv" or not files.is_dir():
        raise SwebenchError(f"{name}: {instance['repo']} lies in its image: use docker or podman")
    own = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=scratch.resolve()))
    (own / "tmp").mkdir()
    # bound under the host's name, as mini-swe-agent does it, with a link at the image's
    clone = own / "testbed"
    # running the tests in place leaves caches behind
    caches = shutil.ignore_patterns("__pycache__", ".pytest_cache", "*.pyc")
    shutil.copytree(files, clone, ignore=caches)
    for file in clone.rglob("*"):  # an installer may have set modes, which git would note
        file.chmod(0o755 if file.is_dir() else 0o644)
    _git(clone, "init", "--quiet", "--initial-branch=main")
    _git(clone, "add", "--all")
    _git(clone, "commit", "--quiet", "--message", "Start")
    _git(clone, "reset", "--quiet", "--hard", instance["base_commit"])
    options = bubblewrap_options(clone, clone, CLEAN_ENVIRONMENT, own / "tmp")
    wrapper = ["--symlink", str(clone), TESTBED, *options, "--new-session"]
    program = working_bubblewrap()
    settings = {"environment_class": SANDBOX, "executable": program, "wrapper_args": wrapper}
    return settings | {"cwd": str(clone)}


def _git(folder: Path, *arguments: str) -> None:
    """Run git without the user's settings and hooks' variables.

    Commits have a fixed author and date, and so the same hash on every machine.
    """
    who = {"NAME": "agentkv", "EMAIL": "agentkv@localhost", "DATE": "2025-01-01T00:00:00+0000"}
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{role}_{n}": text for role in ("AUTHOR", "COMMITTER") for n, text in who.items()},
    }
    command = ["git", "-C", str(folder), *arguments]
    subprocess.run(command, check=True, env=environment, capture_output=True, text=True)


def commands(instance: Instance, solution: str) -> tuple[str, ...]:
    """Return the commands of a `gold` or `wrong` solution, one a turn; the last one submits."""
    if solution == "gold":
        change = f"git apply - <<'END_OF_PATCH'\n{instance['patch']}END_OF_PATCH"
    else:  # a patch that applies, to the file that gold changes, and resolves nothing
        changed = re.findall(r"^--- a/(\S+)", instance["patch"], re.MULTILINE)
        change = f"echo '# looked at, not fixed' >> {changed[0]}"
    return ("git status --short && ls", change, _MAKE_PATCH, _SUBMIT)


@contextmanager
def solution_server(instances: Sequence[Instance], solution: str) -> Iterator[str]:
    """Serve one solution of every instance, `gold` or `wrong`; yield the `base_url`.

    It shows without a model that the way from a run to its report works: its token counts are
    words, and it caches nothing.
    """
    model = f"scripted-{solution}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == "/v1/models"
            self._answer({"data": [{"id": model}]}, 200 if is_known else 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer({"model": model, **completion(instances, solution, body["messages"])}, 200)

        def _answer(self, document: dict[str, Any], status: int) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Keep standard error for the run."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()


def completion(
    instances: Sequence[Instance], solution: str, messages: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the next reply: the problem in the conversation names the instance, its replies the
    turn."""
    text = "\n".join(message.get("content") or "" for message in messages)
    instance = next(one for one in instances if one["problem_statement"].strip() in text)
    turn = sum(message["role"] == "assistant" for message in messages)
    command = commands(instance, solution)[turn]
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    call = {"id": f"call-{turn}", "type": "function", "function": function}
    message = {"role": "assistant", "content": "THOUGHT: next.", "tool_calls": [call]}
    usage = {"prompt_tokens": len(text.split()), "completion_tokens": len(command.split())}
    return {
        "id": f"chatcmpl-{turn}",
        "object": "chat.completion",
        "created": 0,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {**usage, "total_tokens": sum(usage.values())},
    }
