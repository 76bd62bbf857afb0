"""Each reply of the corpus under cases/ gives the calls listed with it."""

import pytest

from agentkv import parse_tool_calls
from tests.tool_calls.corpus import Case, read_corpus

CORPUS = read_corpus()


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.id)
def test_the_calls_of_a_reply_are_found(case: Case) -> None:
    """The calls of a reply are found in order, as listed, by the reader of its dialect."""
    found = parse_tool_calls(case.reply)
    shown = [
        {key: getattr(call, key) for key in expected}
        for call, expected in zip(found, case.calls, strict=False)
    ]
    assert (len(found), shown) == (len(case.calls), list(case.calls))
    assert {call.source for call in found} <= {case.source}


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.id)
def test_end_tokens_and_line_ends_change_nothing(case: Case) -> None:
    """Tokens that end a turn, as some servers decode them, and Windows line ends change nothing."""
    found = parse_tool_calls(case.reply)
    for end in ("<|im_end|>", "\n<|eot_id|>", "</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>"):
        assert parse_tool_calls(case.reply + end) == found
    reply = case.reply.replace("\r\n", "\n")
    assert parse_tool_calls(reply.replace("\n", "\r\n")) == parse_tool_calls(reply)
