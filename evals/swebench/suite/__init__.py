"""Six small instances in the SWE-bench format, and a server that plays their solutions.

`instances.json` is a dataset like any other. `repositories` holds plain files, bugs included;
`environments.prepare_suite` makes the commits that the instances name. The server shows without a
model that the path from a run to its report works: its token counts are words, and it caches and
pins nothing.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from ..instances import Instance

Solution = Literal["gold", "wrong"]
SCRIPTED: Mapping[str, Solution] = {"scripted:gold": "gold", "scripted:wrong": "wrong"}
MODEL_CONFIG = Path(__file__).with_name("demo_model.yaml")
"""mini-swe-agent's configuration for the 135M demo model."""
_MAKE_PATCH = "git add --intent-to-add . && git diff > patch.txt && cat patch.txt"
_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"


def commands(instance: Instance, solution: Solution) -> tuple[str, ...]:
    """Return the commands that the agent is given, one a turn; the last one submits."""
    if solution == "gold":
        change = f"git apply - <<'END_OF_PATCH'\n{instance['patch']}END_OF_PATCH"
    else:  # a patch that applies, to the file that gold changes, and resolves nothing
        changed = re.findall(r"^--- a/(\S+)", instance["patch"], re.MULTILINE)
        change = f"echo '# looked at, not fixed' >> {changed[0]}"
    return ("git status --short && ls", change, _MAKE_PATCH, _SUBMIT)


@contextmanager
def solution_server(instances: Sequence[Instance], solution: Solution) -> Iterator[str]:
    """Serve one solution of every instance, right or wrong; yield the `base_url`."""
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
    instances: Sequence[Instance], solution: Solution, messages: Sequence[Mapping[str, Any]]
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
    num_prompt, num_reply = len(text.split()), len(command.split())
    return {
        "id": f"chatcmpl-{turn}",
        "object": "chat.completion",
        "created": 0,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_reply,
            "total_tokens": num_prompt + num_reply,
        },
    }
