"""Lines that start with a fence: whether they close a block, or open one."""

from __future__ import annotations

import re

FENCE_LINE = re.compile(r"\n(?P<indent>[ \t]{0,60}+)(?P<run>`{3,}+|~{3,}+)(?P<info>[^\n]*+)")
"""A line with a fence at its start, and the line end before it."""

_INFO = re.compile(
    r"(?P<blank>[ \t]*+)(?P<token>(?P<language>[A-Za-z][\w+#-]*+)[^\s`]*+|\{)(?P<rest>[^\n]*+)"
)
# Nothing, or what prose has not.
_ATTRIBUTES = re.compile(r"[ \t]*+(?:\Z|[^\n]*[={])")
# What goes on behind a fence that is no more than a part of an argument or a pattern.
_CODE = re.compile(r"[ \t]*+['\"`]|[$|&/\\\]}=+%^]")
# What opens a block even where it could be the word of a sentence behind a fence that closes.
_KNOWN_LANGUAGE = re.compile(
    r"(?i:bash|c|c\+\+|console|cpp|cs|csharp|css|csv|diff|docker|dockerfile|go|graphql|html|ini|java"
    r"|javascript|js|json|jsonc|jsx|kotlin|lua|makefile|markdown|md|mermaid|mswea_bash_command|php"
    r"|plaintext|powershell|py|python|python3|r|rb|ruby|rust|scala|scss|sh|shell|sql|swift|terraform"
    r"|text|toml|ts|tsx|txt|typescript|xml|yaml|yml|zsh)"
)


def closes(line: re.Match[str]) -> bool:
    """Whether the line can close a block, with nothing behind its fence, or with prose."""
    return not is_opener(line) and not _CODE.match(line["info"])


def is_opener(line: re.Match[str]) -> bool:
    """Whether the line names a language, as only one that opens a block does.

    Prose has a blank before it or several words. So may a language with attributes, but then it
    is a well-known one, or they have signs of their own.
    """
    info = _INFO.match(line["info"])
    if info is None:
        return False
    if info["language"] is None:
        return True
    is_known = _KNOWN_LANGUAGE.fullmatch(info["language"]) is not None
    has_attributes = _ATTRIBUTES.match(info["rest"]) is not None
    if info["blank"]:
        return is_known and has_attributes
    return is_known or (has_attributes and info["token"][-1] not in ".,;:!?")
