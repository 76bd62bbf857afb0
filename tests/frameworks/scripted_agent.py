"""The model behind the agents under test: it answers by a plan, in the form that a framework reads.

The marker `PLAN-name` in an agent's instructions or task chooses the plan, and the number of tool
results in the conversation, each with the word RESULT, the step of it.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tests.scripted_server import ScriptedReply

Body = Mapping[str, Any]
Step = tuple[tuple[str, str], ...]
"""Tool calls made at once: name, and the value of each required argument."""

COMMAND = "sleep 0.2 && grep -rn kv ."
SHELL = ("shell", COMMAND)
LOOKUP = ("lookup", "kv cache")
SLOW_ECHO = "sleep 0.2; echo RES''ULT"  # the word itself comes with the output alone
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo FINISHED"

PLANS: Mapping[str, Sequence[Step]] = {
    "two": ((SHELL,), (LOOKUP,)),
    "fails": ((SHELL,), (LOOKUP,)),
    "parallel": ((SHELL, LOOKUP),),
    "delegate": ((("helper", "look it up"),),),
    "handoff": ((("handoff", "helper"),),),
    "transfer": ((("transfer", "helper"),),),
    "member": ((("member", "helper"),),),
    "helper": ((SHELL,),),
    "object": ((("answer", "FINISHED"),),),
    "answer": (),
    "bash": ((("bash", SLOW_ECHO),),),
}
"""The steps before the final answer. After the first one of `fails` the server refuses."""

CODE = f'<code>\nshell(command="{COMMAND}")\n</code>'
CODE_FINAL = '<code>\nfinal_answer("FINISHED")\n</code>'


def reply(body: Body) -> ScriptedReply | None:
    """The next reply in a conversation; None, which is an error, for a plan that fails."""
    system, text = _system_of(body), json.dumps(body.get("messages") or body.get("input"))
    marker = re.search(r"PLAN-(\w+)", system) or re.search(r"PLAN-(\w+)", text)
    plan, num_results = marker[1] if marker else "two", text.count("RESULT")
    if plan == "fails" and num_results:
        return None
    if plan == "code":
        return ScriptedReply(CODE_FINAL if num_results else CODE)
    for step in PLANS[plan]:
        if num_results <= 0:
            return _dspy(*step[0]) if "next_tool_name" in text else _calls(body, step)
        num_results -= len(step)
    if "next_tool_name" in text:
        return _dspy("finish", "")
    final = "RESULT of the helper" if plan == "helper" else "FINISHED"
    if "[[ ## reasoning ## ]]" in text:
        final = (
            f"[[ ## reasoning ## ]]\nSo.\n\n[[ ## answer ## ]]\n{final}\n\n[[ ## completed ## ]]"
        )
    if plan == "bash":
        return _calls(body, (("bash", SUBMIT),))
    if "final_answer" in _offered(body):
        return _calls(body, (("final_answer", final),))
    return ScriptedReply(final)


def _dspy(name: str, value: str) -> ScriptedReply:
    """A step of DSPy's ReAct, in fields of text."""
    argument = {"shell": "command", "lookup": "query", "helper": "task", "finish": ""}[name]
    fields = {
        "next_thought": "Next.",
        "next_tool_name": "ask_helper" if name == "helper" else name,
        "next_tool_args": json.dumps({argument: value} if argument else {}),
        "completed": "",
    }
    texts = (f"[[ ## {field} ## ]]\n{text}\n" for field, text in fields.items())
    return ScriptedReply("\n".join(texts))


def _system_of(body: Body) -> str:
    parts = [body.get("instructions") or ""]
    for message in body.get("messages") or body.get("input") or ():
        if isinstance(message, Mapping) and message.get("role") in ("system", "developer"):
            parts.append(json.dumps(message.get("content")))
    return " ".join(parts)


def _offered(body: Body) -> dict[str, Any]:
    """The tools of a request: name -> JSON schema of the arguments."""
    tools = [tool.get("function") or tool for tool in body.get("tools") or ()]
    return {tool["name"]: tool.get("parameters") or {} for tool in tools if "name" in tool}


def _calls(body: Body, step: Step) -> ScriptedReply:
    offered = _offered(body)
    calls = []
    for name, value in step:
        name = next((one for one in offered if name in one.lower()), name)
        parameters = offered.get(name, {}).get("required") or ()
        function = {"name": name, "arguments": json.dumps(dict.fromkeys(parameters, value))}
        calls.append(
            {"id": f"call-{secrets.token_hex(4)}", "type": "function", "function": function}
        )
    return ScriptedReply("", tool_calls=calls)
