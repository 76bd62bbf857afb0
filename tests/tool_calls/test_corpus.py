"""Every reply of the corpus gives the calls written beside it."""

from __future__ import annotations

import pytest

from agentkv import parse_tool_calls
from tests.tool_calls.corpus import Case, read_corpus

CORPUS = read_corpus()


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.id)
def test_the_calls_of_a_reply_are_found(case: Case) -> None:
    """In order, each with what the case says of it, by the reader of its format."""
    found = parse_tool_calls(case.reply)
    shown = [
        {key: getattr(call, key) for key in expected}
        for call, expected in zip(found, case.calls, strict=False)
    ]
    assert (len(found), shown) == (len(case.calls), list(case.calls))
    assert {call.source for call in found} <= {case.source}


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.id)
def test_the_token_that_ends_a_turn_changes_nothing(case: Case) -> None:
    """Servers that keep special tokens decode it behind the reply."""
    for end in ("<|im_end|>", "\n<|eot_id|>", "</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>"):
        assert parse_tool_calls(case.reply + end) == parse_tool_calls(case.reply)


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.id)
def test_line_ends_of_windows_change_nothing(case: Case) -> None:
    """Commands come with the line ends of a shell."""
    reply = case.reply.replace("\r\n", "\n")
    assert parse_tool_calls(reply.replace("\n", "\r\n")) == parse_tool_calls(reply)


def test_the_corpus_is_large_and_each_case_is_there_once() -> None:
    """At least 200 replies over all formats."""
    assert len(CORPUS) >= 200
    assert len({case.id for case in CORPUS}) == len(CORPUS)
