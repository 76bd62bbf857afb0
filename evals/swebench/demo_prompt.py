"""mini-swe-agent's configuration for a model of 135M parameters.

The SWE-bench prompt is too much for one: it talks about the instructions and runs nothing. This
one asks for a command and little else, and reads it from the fence that such a model writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_OUTPUT_TOKENS = 96
"""The demo model seldom ends by itself, and a CPU gives it few tokens a second."""
_SYSTEM = """\
You are a helpful assistant. You answer with one bash command in a code block, like this:

```bash
ls
```"""
_TASK = """\
A Python project in the current folder has this bug:

{{task}}

Which bash command do you run next? `ls` lists the files, `cat FILE` shows one. When you are done:

```bash
echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff
```"""
_SETTINGS: Mapping[str, Any] = {
    "agent.system_template": _SYSTEM,
    "agent.instance_template": _TASK,
    # an answer without a command is not the end: it is told so, and asked again
    "agent.max_consecutive_format_errors": 0,
    "model.action_regex": r"```(?:bash|sh|console)\s*\n(.*?)\n```",
    "model.format_error_template": "Answer with exactly one bash command in a ```bash code block.",
    # so that six turns fit into the context
    "model.observation_template": "{{output.output[:800]}}\nNext command?",
    "model.model_kwargs.max_tokens": MAX_OUTPUT_TOKENS,
    "model.model_kwargs.temperature": 0.0,
}


def demo_configs() -> list[str]:
    """As `--config` takes them."""
    return [f"{name}={json.dumps(value)}" for name, value in _SETTINGS.items()]
