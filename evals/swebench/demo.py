"""The server and the settings of `agentkv swebench demo`.

`solution_server` plays the solution of each instance, right or wrong, to show without a model that
the path from a run to its report works. Its token counts are words; it caches and pins nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from agentkv.testing import ScriptedReply, ScriptedServer

from .instances import SUITE_FILE, Instance

Solution = Literal["gold", "wrong"]
DEMO_MODEL = "demo"
SCRIPTED: Mapping[str, Solution] = {"scripted:gold": "gold", "scripted:wrong": "wrong"}
MODEL_CONFIG = SUITE_FILE.with_name("demo_model.yaml")
"""mini-swe-agent's configuration for the 135M demo model."""
_MAKE_PATCH = "git add --intent-to-add . && git diff > patch.txt && cat patch.txt"
_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"
_FENCE = "mswea_bash_command"
"""The fence of mini-swe-agent's text mode.

Source: mini-swe-agent 2.4.6, models/litellm_textbased_model.py, action_regex.
"""


def note_on(model: str) -> str:
    """Return what a reader of the demo's result must know about its model."""
    if model == DEMO_MODEL:
        return "a 135M model: it resolves little or nothing; the run itself is sound"
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


def solution_server(instances: Sequence[Instance], solution: Solution) -> ScriptedServer:
    """Return a server that plays one solution of every instance, right or wrong."""
    reply = partial(_reply, instances, solution)
    return ScriptedServer(reply, model=f"scripted-{solution}")


def _reply(
    instances: Sequence[Instance], solution: Solution, body: Mapping[str, Any]
) -> ScriptedReply | None:
    """Find the instance by its problem in the conversation, and the turn by the replies in it."""
    messages = body.get("messages") or []
    text = "\n".join(_text(message) for message in messages)
    found = [one for one in instances if one.problem_statement.strip() in text]
    if not found:
        return None
    turn = sum(message.get("role") == "assistant" for message in messages)
    to_run = commands(found[0], solution)
    command = to_run[min(turn, len(to_run) - 1)]
    num_prompt, num_output = len(text.split()), len(command.split())
    if not body.get("tools"):
        fenced = f"THOUGHT: next.\n\n```{_FENCE}\n{command}\n```"
        return ScriptedReply(fenced, num_prompt, None, num_output)
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    call = {"id": f"call-{turn}", "type": "function", "function": function}
    return ScriptedReply("THOUGHT: next.", num_prompt, None, num_output, tool_calls=[call])


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)
