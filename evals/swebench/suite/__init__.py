"""Six small instances in the SWE-bench format, and a server that plays their solutions.

`instances.json` is a dataset like any other. `repositories` holds plain files, bugs included;
`environments.prepare_suite` makes the commits that the instances name. The server shows without a
model that the path from a run to its report works: its token counts are words, and it caches and
pins nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tests.scripted_server import ScriptedReply, ScriptedServer

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


def solution_server(instances: Sequence[Instance], solution: Solution) -> ScriptedServer:
    """Return a server that plays one solution of every instance, right or wrong."""
    return ScriptedServer(partial(_reply, instances, solution), model=f"scripted-{solution}")


def _reply(
    instances: Sequence[Instance], solution: Solution, body: Mapping[str, Any]
) -> ScriptedReply:
    """Find the instance by its problem in the conversation, and the turn by the replies in it."""
    messages = body["messages"]
    text = "\n".join(message.get("content") or "" for message in messages)
    instance = next(one for one in instances if one["problem_statement"].strip() in text)
    turn = sum(message["role"] == "assistant" for message in messages)
    command = commands(instance, solution)[turn]
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    call = {"id": f"call-{turn}", "type": "function", "function": function}
    counts = (len(text.split()), None, len(command.split()))
    return ScriptedReply("THOUGHT: next.", *counts, tool_calls=[call])
