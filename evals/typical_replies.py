"""A reply of 4 kB in each of the formats that models write calls in."""

from __future__ import annotations

import json
from collections.abc import Mapping

NUM_CHARS = 4_000
_COMMANDS = (
    "cd /testbed && grep -rn 'def parse' --include='*.py' src | head -40",
    "cat > fix.py <<'PY'\nimport re\n\nprint(re.sub('<a>', '', open('a.xml').read()))\nPY\n"
    "python fix.py && python -m pytest -q tests/test_io.py 2>&1 | tail -20",
)
_THOUGHT = (
    "The failing test expects the header to be kept. In `io.py` the reader drops the first "
    "line when `header=None`, so I look at how `parse()` counts lines. "
)
_PROSE = (
    "I look at the parser first, then I run the tests.\n\n- `src/io.py`: reads the header\n"
    "- `src/table.py`: [the columns](docs/table.md), see f(x) < 3\n\n"
)
_BAR, _BLOCK = "\uff5c", "\u2581"


def typical_replies() -> Mapping[str, str]:
    """Per format a thought, prose and two calls."""
    replies = {name: _reply("<think>\n{}\n</think>\n", call) for name, call in _CALLS.items()}
    replies["harmony"] = _reply(
        "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>commentary<|message|>",
        _CALLS["harmony"],
    )
    replies["no call"] = _PROSE * (NUM_CHARS // len(_PROSE))
    return replies


def _reply(thought: str, call: str) -> str:
    """Prose and calls, and as much of a thought before them as makes it 4 kB."""
    calls = "\n".join(
        call.replace("JSON", json.dumps({"command": command})).replace("BASH", command)
        for command in _COMMANDS
    )
    num_left = NUM_CHARS - len(thought) - len(_PROSE) - len(calls)
    thinking = (_THOUGHT * (num_left // len(_THOUGHT) + 1))[:num_left]
    return f"{thought.format(thinking)}{_PROSE}{calls}"


def _token(name: str) -> str:
    return f"<{_BAR}{name.replace(' ', _BLOCK)}{_BAR}>"


_CALLS = {
    "fenced": "```bash\nBASH\n```",
    "tagged": "<mswea_bash_command>\nBASH\n</mswea_bash_command>",
    "hermes": '<tool_call>\n{"name": "bash", "arguments": JSON}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=bash>\n<parameter=command>\nBASH\n</parameter>\n"
    "</function>\n</tool_call>",
    "invoke": '<invoke name="bash">\n<parameter name="command">BASH</parameter>\n</invoke>',
    "llama": '{"name": "bash", "parameters": JSON}',
    "mistral": "[TOOL_CALLS]bash[ARGS]JSON",
    "glm": "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>BASH</arg_value>\n</tool_call>",
    "kimi_k2": "<|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>JSON"
    "<|tool_call_end|>",
    "deepseek": f"{_token('tool call begin')}function{_token('tool sep')}bash\n```json\nJSON\n```"
    f"{_token('tool call end')}",
    "harmony": "<|start|>assistant<|channel|>commentary to=functions.bash <|constrain|>json"
    "<|message|>JSON<|call|>",
}
