"""The syntax of bash: a text's tree in bounded time, its words, and its here-documents.

The only module that calls tree-sitter's parser. `analysis` walks the tree; `agentkv.tool_calls`
looks for here-documents in replies, where they hide tags and fences.
"""

from __future__ import annotations

import re
from threading import Lock

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

MAX_ANALYZED_BYTES = 2048
"""Length read of a command, after its long here-documents are cut. The parser's worst time grows
with the square of it: 46 ms at this one."""
_PARSER = Parser(Language(tree_sitter_bash.language()))
_PARSER_LOCK = Lock()

HEREDOC_OPENER = re.compile(
    # neither a here-string (<<<) nor, with a number or `=` behind it, a shift
    r"<(?<!<<)<(?!<)-?[ \t]{0,20}+(?![0-9=])"
    # in quotes any text of a line, else a word
    r"\\?(?P<quote>['\"])?(?P<delimiter>(?(quote)[^'\"\n]{1,64}+|[\w.!@+%:/=~^-]{1,64}+))"
    r"(?(quote)(?P=quote))"
)
_CRASHES = re.compile(r"(?<=[{.0-9])[^\x00-\xff]")
"""A character that tree-sitter-bash 0.25.1 looks up in a table of 256, right behind `{`, `{1` or
`{1..2`: a large one ends the process. Source: tree-sitter/tree-sitter-bash#337."""
_WINDOWS_PATH = re.compile(r"[\w.:]\\+[\w.]")
_KEPT_CHARS = 400
_KEPT_SCRIPT_CHARS = 1600
"""Kept of a here-document that a shell reads, since it runs that."""
_SHELL = re.compile(r"(?:^|[\s;&|(])(?:\S{0,60}/)?(?:ba|da|k|s|z)?sh(?=\s|$)")
_MAX_LINE_CHARS = 200
_MAX_HEREDOCS = 16


def parse(text: str) -> Node:
    """Parse the text's beginning. May be called from any thread.

    The length bounds the time. tree-sitter could also report progress, but only where a callback
    gives it the text, and 0.26.1 never frees that text.
    """
    if not text.isascii():
        text = _CRASHES.sub("\xff", text)
    source = text.encode("utf-8", "replace")[:MAX_ANALYZED_BYTES]
    with _PARSER_LOCK:
        return _PARSER.parse(source).root_node


def text_of(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def word_of(node: Node) -> str:
    """A word as the shell would pass it, expansions left as written."""
    kind = node.type
    if kind == "command_name" and node.named_children:
        name = node.named_children[0]
        # bash drops the backslashes of `.venv\\Scripts\\python`, which is meant for Windows
        is_path = name.type in ("word", "concatenation") and _WINDOWS_PATH.search(text_of(name))
        return text_of(name) if is_path else word_of(name)
    text = text_of(node)
    if kind == "raw_string":
        return text[1:-1]
    if kind == "string":
        return text[1:-1].replace('\\"', '"').replace("\\$", "$").replace("\\\\", "\\")
    if kind == "concatenation":
        return "".join(map(word_of, node.named_children))
    return text.replace("\\", "") if kind == "word" and ":\\" not in text else text


def elide_heredocs(text: str) -> str:
    """Cut each here-document's body to 400 characters, a script to 1,600; linear in the length.

    So what runs after them stays within the length that is parsed.
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
        delimiter = re.escape(opener["delimiter"])
        closer = re.compile(rf"^[ \t]*{delimiter}[ \t]*$", re.MULTILINE).search(text, body)
        if closer is None:  # `1 << n`
            position = opener.end()
            continue
        end = closer.start()
        line = text.rfind("\n", 0, opener.start()) + 1
        before = text[max(line, opener.start() - _MAX_LINE_CHARS) : opener.start()]
        kept_chars = _KEPT_SCRIPT_CHARS if _SHELL.search(before) else _KEPT_CHARS
        if end - body > kept_chars:
            parts += text[kept_to : body + kept_chars], "\n"
            kept_to = end
        position = end
    return "".join([*parts, text[kept_to:]])
