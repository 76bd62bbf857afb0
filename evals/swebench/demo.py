"""The server and the settings of `agentkv swebench demo`.

`SolutionServer` plays the solution of each instance, right or wrong, to show without a model that
the path from a run to its report works. Its token counts are words; it caches and pins nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from agentkv.protocol import WIRE_VERSION
from agentkv.testing import ScriptedReply
from agentkv.testing.http_front import Answer, HttpFront, error_answer
from agentkv.testing.reply_bodies import json_body

from .instances import SUITE_FILE, Instance

Solution = Literal["gold", "wrong"]
DEMO_MODEL = "demo"
SCRIPTED: Mapping[str, Solution] = {"scripted:gold": "gold", "scripted:wrong": "wrong"}
MODEL_CONFIG = SUITE_FILE.with_name("demo_model.yaml")
"""mini-swe-agent's configuration for the 135M demo model."""
_CHAT_PATH = "/v1/chat/completions"
_MAKE_PATCH = "git add --intent-to-add . && git diff > patch.txt && cat patch.txt"
_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"
_FENCE = "mswea_bash_command"
"""The fence of mini-swe-agent's text mode.

Source: mini-swe-agent 2.4.6, models/litellm_textbased_model.py, action_regex.
"""


def note_on(model: str) -> str:
    """Return what a reader of the demo's result must know about its model."""
    if model == DEMO_MODEL:
        return "a 135M model: it resolves little or nothing, and that is no fault of the way here"
    return "scripted solutions, no model: token counts are words, nothing is cached or pinned"


def commands(instance: Instance, solution: Solution) -> tuple[str, ...]:
    """Return the commands that the agent is given, one a turn; the last one submits."""
    if solution == "gold":
        ending = "" if instance.patch.endswith("\n") else "\n"
        change = f"git apply - <<'END_OF_PATCH'\n{instance.patch}{ending}END_OF_PATCH"
    else:  # a patch that applies, to the file that gold changes, and resolves nothing
        changed = re.search(r"^--- a/(\S+)", instance.patch, re.MULTILINE)
        change = f"echo '# looked at, not fixed' >> {changed.group(1) if changed else 'NOTES'}"
    return ("git status --short && ls", change, _MAKE_PATCH, _SUBMIT)


class SolutionServer:
    """An OpenAI-compatible server that plays one solution of every instance; a context manager."""

    def __init__(self, instances: Sequence[Instance], solution: Solution) -> None:
        self._instances = tuple(instances)
        self._solution = solution
        self._front = HttpFront(self._answer)

    @property
    def model(self) -> str:
        """Name of the model that it serves."""
        return f"scripted-{self._solution}"

    @property
    def base_url(self) -> str:
        """The `base_url` for an OpenAI client."""
        return f"{self._front.url}/v1"

    def __enter__(self) -> Self:
        self._front.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._front.stop()

    def _answer(self, method: str, path: str, headers: Mapping[str, str], body: Any) -> Answer:
        if (method, path) == ("POST", _CHAT_PATH) and isinstance(body, dict):
            return self._play(body)
        if method == "POST" and path.startswith("/v1/agentkv/jobs/"):
            return Answer(200, {"job_id": path.split("/")[4]})
        found = {
            "/health": {},
            "/v1/models": {"object": "list", "data": [{"id": self.model, "object": "model"}]},
            "/v1/agentkv/info": {"wire_version": WIRE_VERSION, "policy": "scripted"},
        }.get(path)
        return error_answer(404, "Not Found") if found is None else Answer(200, found)

    def _play(self, body: Mapping[str, Any]) -> Answer:
        messages = body.get("messages") or []
        text = "\n".join(_text(message) for message in messages)
        instance = self._instance(f"{body.get('job_id', '')}\n{text}")
        if instance is None:
            return error_answer(400, "the conversation names no instance that is served here")
        turn = sum(message.get("role") == "assistant" for message in messages)
        to_run = commands(instance, self._solution)
        command = to_run[min(turn, len(to_run) - 1)]
        reply_text, calls = f"THOUGHT: next.\n\n```{_FENCE}\n{command}\n```", []
        if body.get("tools"):
            function = {"name": "bash", "arguments": json.dumps({"command": command})}
            calls = [{"id": f"call-{turn}", "type": "function", "function": function}]
            reply_text = "THOUGHT: next."
        num_prompt, num_output = len(text.split()), len(command.split())
        reply = ScriptedReply(reply_text, num_prompt, None, num_output, tool_calls=calls)
        return Answer(200, json_body(_CHAT_PATH, reply))

    def _instance(self, text: str) -> Instance | None:
        """Find the instance whose problem is in the text, else the longest id in it."""
        for instance in self._instances:
            if instance.problem_statement.strip() and instance.problem_statement.strip() in text:
                return instance
        named = [instance for instance in self._instances if instance.instance_id in text]
        return max(named, key=lambda instance: len(instance.instance_id), default=None)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)
