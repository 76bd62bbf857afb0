"""Bash as tree-sitter parses it: the tree of a text in bounded time, and what its words say."""

from __future__ import annotations

import re
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


# Here-documents of a bash text: how one opens, and long ones cut short.
# Cut, so that what runs after them is within the text that is analysed.

HEREDOC_OPENER = re.compile(
    # neither a here-string (<<<) nor, with a number or `=` behind it, a shift
    r"<(?<!<<)<(?!<)-?[ \t]{0,20}+(?![0-9=])"
    # in quotes any text of a line, else a word
    r"\\?(?P<quote>['\"])?(?P<delimiter>(?(quote)[^'\"\n]{1,64}+|[\w.!@+%:/=~^-]{1,64}+))"
    r"(?(quote)(?P=quote))"
)
_KEPT_CHARS = 400
_KEPT_SCRIPT_CHARS = 1600
"""Of what a shell is fed: it runs that."""
_SHELL = re.compile(r"(?:^|[\s;&|(])(?:\S{0,60}/)?(?:ba|da|k|s|z)?sh(?=\s|$)")
_MAX_LINE_CHARS = 200
_MAX_HEREDOCS = 16


def elide_heredocs(text: str) -> str:
    """The text with each here-document's body cut to 400 characters, a script to 1,600.

    Linear time.
    """
    if "<<" not in text:
        return text
    parts: list[str] = []
    kept_to = position = 0
    for _ in range(_MAX_HEREDOCS):
        opener = HEREDOC_OPENER.search(text, position)
        body = text.find("\n", opener.end()) + 1 if opener else 0
        if opener is None or not body:
            break
        end = _end_of_body(text, body, opener["delimiter"])
        if end is None:
            position = opener.end()
            continue
        kept_chars = _kept_chars(text, opener.start())
        if end - body > kept_chars:
            parts += text[kept_to : body + kept_chars], "\n"
            kept_to = end
        position = end
    return "".join([*parts, text[kept_to:]])


def _kept_chars(text: str, opener: int) -> int:
    """How much is kept of the here-document that opens here, behind a shell's name or another's."""
    line = text[max(text.rfind("\n", 0, opener) + 1, opener - _MAX_LINE_CHARS) : opener]
    return _KEPT_SCRIPT_CHARS if _SHELL.search(line) else _KEPT_CHARS


def _end_of_body(text: str, start: int, delimiter: str) -> int | None:
    """Where the line that is only the delimiter begins; None if there is none: `1 << n`."""
    closer = re.compile(rf"^[ \t]*{re.escape(delimiter)}[ \t]*$", re.MULTILINE).search(text, start)
    return closer.start() if closer else None
