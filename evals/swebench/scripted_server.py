"""An OpenAI-compatible server that plays the solution of each instance, right or wrong.

For showing that the path from a run to its report works, without a model: it finds out from the
conversation which instance it is asked about, and how far the agent is. Its token counts are
words; it caches nothing and pins nothing.
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

from .instances import Instance

Solution = Literal["gold", "wrong"]
SOLUTIONS: tuple[Solution, ...] = ("gold", "wrong")
MODEL_PREFIX = "scripted:"
CHAT_PATH = "/v1/chat/completions"
_MAKE_PATCH = "git add --intent-to-add . && git diff > patch.txt && cat patch.txt"
_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"
_FENCE = "mswea_bash_command"
"""The fence that mini-swe-agent's text mode looks for.

Source: mini-swe-agent 2.4.6, models/litellm_textbased_model.py, action_regex.
"""


def commands(instance: Instance, solution: Solution) -> tuple[str, ...]:
    """What the agent is told to run, a command a turn; the last one submits."""
    change = _apply(instance.patch) if solution == "gold" else _change_nothing(instance.patch)
    return ("git status --short && ls", change, _MAKE_PATCH, _SUBMIT)


def _apply(patch: str) -> str:
    ending = "" if patch.endswith("\n") else "\n"
    return f"git apply - <<'END_OF_PATCH'\n{patch}{ending}END_OF_PATCH"


def _change_nothing(gold_patch: str) -> str:
    """A patch that applies, to the file that gold changes, and resolves nothing."""
    changed = re.search(r"^--- a/(\S+)", gold_patch, re.MULTILINE)
    return f"echo '# looked at, not fixed' >> {changed.group(1) if changed else 'NOTES'}"


class SolutionServer:
    """Serves one solution of every instance given; use it as a context manager."""

    def __init__(self, instances: Sequence[Instance], solution: Solution) -> None:
        self._instances = tuple(instances)
        self._solution = solution
        self._front = HttpFront(self._answer)

    @property
    def model(self) -> str:
        """The name of the model that it says it serves."""
        return f"scripted-{self._solution}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base_url."""
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
        if (method, path) == ("POST", CHAT_PATH) and isinstance(body, dict):
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
        reply = _reply(
            to_run[min(turn, len(to_run) - 1)],
            call_id=f"call-{turn}",
            has_tools=bool(body.get("tools")),
            prompt_tokens=len(text.split()),
        )
        return Answer(200, json_body(CHAT_PATH, reply))

    def _instance(self, text: str) -> Instance | None:
        """The one whose problem stands in the text, else the longest id that does."""
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


def _reply(command: str, *, call_id: str, has_tools: bool, prompt_tokens: int) -> ScriptedReply:
    """The command as a tool call, or in a fence for an agent that offers no tools."""
    num_words = len(command.split())
    if not has_tools:
        text = f"THOUGHT: next.\n\n```{_FENCE}\n{command}\n```"
        return ScriptedReply(text, prompt_tokens, None, num_words)
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    call = {"id": call_id, "type": "function", "function": function}
    return ScriptedReply("THOUGHT: next.", prompt_tokens, None, num_words, tool_calls=[call])
