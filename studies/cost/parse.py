"""Time `parse_tool_calls`: microseconds for a 4 kB reply in each dialect, and the worst 200 kB.

A typical reply is a thought, prose and two calls; an adversarial one repeats a piece of a dialect.
`python -m studies.cost.parse` prints the rows and, last, one JSON document; exit status 1 if a
target is missed. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from statistics import median, quantiles
from typing import Any

from agentkv.evals.rows import provenance
from agentkv.tool_calls import parse_tool_calls
from tests.tool_calls.adversarial_replies import NUM_CHARS, adversarial_replies

TARGET_MEDIAN_US = 200.0
TARGET_ADVERSARIAL_MS = 50.0
TYPICAL_CHARS = 4_000
_NUM_READINGS = 1_000
_NUM_WORST = 5

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
    "deepseek": "<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>bash\n"
    "```json\nJSON\n```<\uff5ctool\u2581call\u2581end\uff5c>",
    "harmony": "<|start|>assistant<|channel|>commentary to=functions.bash <|constrain|>json"
    "<|message|>JSON<|call|>",
}


def main() -> int:
    """Measure all replies; 0 if both targets are met, else 1."""
    rows = [measure(name, reply) for name, reply in typical_replies().items()]
    for row in rows:
        print("{format:12} median {median_us:6.1f} us, p99 {p99_us:6.1f} us, n {n}".format(**row))
    adversarial: list[dict[str, Any]] = [
        {"text": name, "ms": _processor_ms(text)} for name, text in adversarial_replies()
    ]
    worst = sorted(adversarial, key=lambda row: row["ms"], reverse=True)[:_NUM_WORST]
    for row in worst:
        print("adversarial  {ms:6.1f} ms  {text}".format(**row))
    is_typical_fast = all(row["median_us"] <= TARGET_MEDIAN_US for row in rows)
    has_passed = is_typical_fast and worst[0]["ms"] <= TARGET_ADVERSARIAL_MS
    sizes = {"num_adversarial": len(adversarial), "adversarial_chars": NUM_CHARS}
    targets = {"median_us": TARGET_MEDIAN_US, "adversarial_ms": TARGET_ADVERSARIAL_MS}
    results = {"targets": targets, **sizes, "slowest_adversarial": worst, "rows": rows}
    print(json.dumps({"passed": has_passed, **provenance(), **results}))
    return 0 if has_passed else 1


def typical_replies() -> Mapping[str, str]:
    """A reply of 4 kB in each dialect, and one without calls."""
    replies = {name: _reply("<think>\n{}\n</think>\n", call) for name, call in _CALLS.items()}
    replies["harmony"] = _reply(
        "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>commentary<|message|>",
        _CALLS["harmony"],
    )
    replies["no call"] = _PROSE * (TYPICAL_CHARS // len(_PROSE))
    return replies


def _reply(thought: str, call: str) -> str:
    """Prose and calls behind a thought long enough to make 4 kB together."""
    calls = "\n".join(
        call.replace("JSON", json.dumps({"command": command})).replace("BASH", command)
        for command in _COMMANDS
    )
    num_left = TYPICAL_CHARS - len(thought) - len(_PROSE) - len(calls)
    thinking = (_THOUGHT * (num_left // len(_THOUGHT) + 1))[:num_left]
    return f"{thought.format(thinking)}{_PROSE}{calls}"


def measure(name: str, reply: str, num_readings: int = _NUM_READINGS) -> dict[str, Any]:
    """Median and 99th percentile of parsing one reply repeatedly, in microseconds."""
    num_calls = len(parse_tool_calls(reply))
    times_us = []
    for _ in range(num_readings):
        start_ns = time.perf_counter_ns()
        parse_tool_calls(reply)
        times_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    return {
        "format": name,
        "chars": len(reply),
        "num_calls": num_calls,
        "median_us": median(times_us),
        "p99_us": quantiles(times_us, n=100)[-1],
        "n": num_readings,
    }


def _processor_ms(text: str) -> float:
    """Processor time of parsing a reply; the best of four for a slow one."""
    times_ms: list[float] = []
    while not times_ms or (times_ms[0] > TARGET_ADVERSARIAL_MS / 2 and len(times_ms) < 4):
        start_s = time.process_time()
        parse_tool_calls(text)
        times_ms.append((time.process_time() - start_s) * 1e3)
    return min(times_ms)


if __name__ == "__main__":
    sys.exit(main())
