"""Replies as tokens and as text, and the names of blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentkv import parse_tool_calls
from agentkv.evals.simulator.agents import NO_COMMAND, Replies
from agentkv.evals.simulator.engine import ContextHashes


@given(st.lists(st.sampled_from(["ls", "cat a.py", "pytest -q && echo done", "grep -rn 'x' ."])))
def test_a_reply_reads_as_its_command(commands: list[str]) -> None:
    """Whatever came before it; the same command has the same token."""
    replies = Replies()
    tokens = [replies.token_of(command) for command in commands]
    for command, token in zip(commands, tokens, strict=True):
        [call] = parse_tool_calls(replies.decode([token] * 3))
        assert call.command == command
        assert replies.token_of(command) == token


def test_a_last_reply_runs_nothing() -> None:
    """The empty command has a token of its own."""
    replies = Replies()
    assert replies.token_of("") == NO_COMMAND
    assert parse_tool_calls(replies.decode([NO_COMMAND])) == []


def test_blocks_of_a_context_keep_their_names() -> None:
    """A longer context has those of a shorter one first, and no other job has any of them."""
    hashes = ContextHashes(7, 16)
    short = hashes.up_to(100)
    assert len(short) == 6
    assert hashes.up_to(200)[:6] == short
    assert hashes.up_to(200, skip=6) == hashes.up_to(200)[6:]
    assert not set(hashes.up_to(1000)) & set(ContextHashes(8, 16).up_to(1000))
