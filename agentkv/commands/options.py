"""Where a program's own options end, given which of them take a value."""

from __future__ import annotations


def takes_next(word: str, with_value: frozenset[str]) -> bool:
    """Whether the next word is this option's value: `-u bob`, `-iu bob`, not `-n5`, `--user=x`."""
    if word in with_value:
        return True
    if word[:2] == "--":
        return False
    for index in range(1, len(word)):
        if f"-{word[index]}" in with_value:
            return index == len(word) - 1
    return False


def behind_options(argv: tuple[str, ...], index: int, with_value: frozenset[str]) -> int:
    """The index of the first word from `index` on that is no option and no option's value."""
    while index < len(argv) and argv[index][:1] == "-":
        if argv[index] == "--":
            return index + 1
        index += 2 if takes_next(argv[index], with_value) else 1
    return index
