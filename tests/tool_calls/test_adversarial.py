"""Parsing takes time that grows with a reply's length, also for adversarial replies."""

import time

import pytest

from agentkv import parse_tool_calls
from tests.tool_calls.adversarial_replies import UNITS, adversarial_replies

NUM_CHARS, MAX_S = 40_000, 0.2
"""More than ten times the target of studies/cost, since tests share their machine: a search that
looks at the same text again and again takes seconds."""


def processor_s(text: str) -> float:
    start_s = time.process_time()
    parse_tool_calls(text)
    return time.process_time() - start_s


@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_adversarial_replies_take_no_longer_than_others(unit: str) -> None:
    """40 kB of one piece of a dialect, alone or within another, parse in bounded time."""
    for name, text in adversarial_replies((unit,), NUM_CHARS):
        assert any(processor_s(text) < MAX_S for _ in range(3)), name


_VALUES = "<function=a>\n<parameter=b>\n<function=c>\n<parameter=d></parameter>\n</function>\n"
_GLM_VALUE = "<tool_call>a<arg_key>b</arg_key><arg_value>"


@pytest.mark.parametrize(
    ("start", "unit", "end"),
    [
        *(("", _VALUES, ""), ("", _VALUES, "</function>\n" * 1000)),
        ("<function=a>", "\n<parameter=b>x", "\n</function>"),
        ("<function=a><parameter=b>", "<parameter=b></parameter>", "</function>"),
        ("<function=a>", "<parameter=b><<E\n</parameter>", "<function=z>\nE\n"),
        ("<function=a>", f"<parameter=b>{'<<A ' * 20}\n</parameter>", "<function=z>\nA\n"),
        ("", "<function=a><parameter=b><<E\n</parameter></function>\n", "\nE\n"),
        ("", '<invoke name="a"><parameter name="b"></think>\n', "</parameter></invoke>"),
        ("", f"{_GLM_VALUE}<<E\n</arg_value></tool_call>", "\nE\n"),
        ("", f"{_GLM_VALUE}\n{_GLM_VALUE}\n</arg_value>", ""),
        ("", "<tool_call><function=a><parameter=b>\n", ""),
        ("", "<tool_call><function=a><parameter=b>'\n", ""),
        ("", "<tool_call><function=a><parameter=b>\"'\n", "\n<tool_call><function=a>"),
        *(("", "<tool_call><function=a><parameter=b><<E\n", ""), ("", f"{_GLM_VALUE}'\n", "")),
        *(("", "<bash>a<<E\n", "\nE\n</bash>"), ("", "<bash>a<<E\n</bash>", "\nE\n</bash>")),
        *(("", "Ok. <think>a '</think>' ", ""), ("", "<think a=", "")),
        *(("", "<analysis>\n'</analysis>' ", ""), ("```bash\n", "``` a b\n", "")),
        *(("```bash\n", "<<'A b'\n", "```\nx\nA b\n"), ("```bash\n<<'A b'\n", "a b\n", "```\nx")),
    ],
)
def test_calls_within_calls_take_no_longer_than_others(start: str, unit: str, end: str) -> None:
    """40 kB of values, here-documents or thoughts with misleading ends parse in bounded time."""
    text = start + unit * (NUM_CHARS // len(unit)) + end
    assert any(processor_s(text) < MAX_S for _ in range(3))


@pytest.mark.parametrize("bracket", ["[", "{", '{"a":', '[{"a":', '{"name":', '[{"name":'])
def test_deep_nesting_is_broken_json(bracket: str) -> None:
    """Brackets nested 100,000 deep are broken JSON, which hides no call before them."""
    reply = f"```bash\nls\n```\n<tool_call>{bracket * 100_000}"
    assert [call.command for call in parse_tool_calls(reply)] == ["ls"]
    arguments = bracket * 100_000
    call = {"id": "1", "function": {"name": "bash", "arguments": arguments}}
    assert parse_tool_calls({"tool_calls": [call]}) == []


def test_a_thousand_calls_are_found() -> None:
    """A reply of a thousand calls gives them all, so the bounds on noise are high enough."""
    reply = "".join(f"```bash\necho {index}\n```\n" for index in range(1000))
    assert [call.command for call in parse_tool_calls(reply)] == [
        f"echo {index}" for index in range(1000)
    ]
