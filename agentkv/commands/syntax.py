"""Bash as tree-sitter parses it: the tree of a text in bounded time, and what its words say."""

from __future__ import annotations

from threading import Lock

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

MAX_PARSED_BYTES = 2048
"""The parser's worst time grows with the square of the length: 25 ms at this one."""
_ALWAYS_PARSED_BYTES = 256
"""Up to here even the worst text takes under a millisecond, and progress need not be watched."""
_MAX_PROGRESS_CALLS = 64
"""Reports of progress until reading is given up; usual commands cause none, long ones under 10."""
_PARSER = Parser(Language(tree_sitter_bash.language()))
_PARSER_LOCK = Lock()


def parse(text: str) -> Node | None:
    """The syntax tree of the text's beginning; None where it is too tangled to read in time.

    May be called from any thread.
    """
    source = text.encode("utf-8", "replace")[:MAX_PARSED_BYTES]
    with _PARSER_LOCK:
        if len(source) <= _ALWAYS_PARSED_BYTES:
            return _PARSER.parse(source).root_node
        return _parse_in_time(source)


def _parse_in_time(source: bytes) -> Node | None:
    num_calls = 0

    def is_enough(*_: object) -> bool:
        nonlocal num_calls
        num_calls += 1
        return num_calls > _MAX_PROGRESS_CALLS

    try:
        tree = _PARSER.parse(lambda offset, _point: source[offset:], progress_callback=is_enough)
    except ValueError:
        _PARSER.reset()
        return None
    return tree.root_node


def text_of(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def word_of(node: Node) -> str:
    """A word as the shell would pass it, expansions left as written."""
    kind = node.type
    if kind == "command_name" and node.named_children:
        return word_of(node.named_children[0])
    text = text_of(node)
    if kind == "raw_string":
        return text[1:-1]
    if kind == "string":
        return text[1:-1].replace('\\"', '"').replace("\\$", "$").replace("\\\\", "\\")
    if kind == "concatenation":
        return "".join(map(word_of, node.named_children))
    return text.replace("\\", "") if kind == "word" and "\\" in text else text
