"""What an interpreter is told to run: code on its command line, a module, a script, its input."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["code", "module", "script", "stdin"]
_MAX_WORDS = 32


class Invocation(NamedTuple):
    """What runs, and the words behind it; `what` is the code, the module or the script's path."""

    kind: Kind
    what: str = ""
    arguments: tuple[str, ...] = ()
    is_said: bool = True
    """Whether the words say so: a bare `python` or `bash` reads its input without being told."""


class _Grammar(NamedTuple):
    """Letters of the one-letter options by what follows them, and long options with a value."""

    code: str = ""
    module: str = ""
    valued: str = ""
    attached: str = ""
    """The rest of the word is their value, even if empty: `perl -Mstrict`."""
    long_valued: frozenset[str] = frozenset()
    long_code: frozenset[str] = frozenset()
    is_shell: bool = False


_SHELL = _Grammar(
    code="c", valued="oO", long_valued=frozenset({"--rcfile", "--init-file"}), is_shell=True
)
_GRAMMARS = {
    "python": _Grammar(
        "c", "m", "WXQ", long_valued=frozenset({"--check-hash-based-pycs", "--jit"})
    ),
    "node": _Grammar(
        "ep",
        valued="rC",
        long_valued=frozenset(
            {"--require", "--import", "--loader", "--experimental-loader", "--conditions"}
        ),
        long_code=frozenset({"--eval", "--print"}),
    ),
    "ruby": _Grammar("e", valued="ICEr", attached="WKTx"),
    "perl": _Grammar("eE", valued="I", attached="MmFDiCx"),
    "php": _Grammar("r", valued="dcSt", long_code=frozenset({"--run"})),
    "Rscript": _Grammar("e"),
    **dict.fromkeys(("bash", "sh", "zsh", "dash", "ksh"), _SHELL),
    "fish": _Grammar(code="c", valued="dDf", long_code=frozenset({"--command"}), is_shell=True),
}
INTERPRETERS = frozenset(_GRAMMARS)
SHELLS = frozenset(name for name, grammar in _GRAMMARS.items() if grammar.is_shell)


def code_option(name: str) -> str:
    """The option under which an interpreter's inline code is known: `-c`, `-e` or `-r`."""
    return f"-{_GRAMMARS[name].code[0]}"


def invocation(name: str, argv: tuple[str, ...]) -> Invocation:
    """What one of INTERPRETERS runs; only its first 32 words are read."""
    grammar = _GRAMMARS[name]
    if grammar.is_shell:
        return _shell_invocation(grammar, argv[:_MAX_WORDS])
    index = 1
    while index < min(len(argv), _MAX_WORDS):
        word = argv[index]
        if word == "-":
            return Invocation("stdin")
        if word == "--" and index + 1 < len(argv):
            return Invocation("script", argv[index + 1], argv[index + 2 :])
        if word[:1] != "-":
            return Invocation("script", word, argv[index + 1 :])
        found = _code_or_module(grammar, argv, index)
        if found is not None:
            return found
        index += 2 if _is_followed_by_value(grammar, word) else 1
    return Invocation("stdin", is_said=False)


def _code_or_module(grammar: _Grammar, argv: tuple[str, ...], index: int) -> Invocation | None:
    """What `-c CODE`, `-cCODE`, `-uc CODE`, `-m MODULE` and their like at this index run."""
    word = argv[index]
    if word[:2] == "--":
        name, has_value, value = word.partition("=")
        if name not in grammar.long_code:
            return None
        return _told("code", value if has_value else "", argv, index)
    for position, letter in enumerate(word[1:], 2):
        if letter in grammar.code:
            return _told("code", word[position:], argv, index)
        if letter in grammar.module:
            return _told("module", word[position:], argv, index)
        if letter in grammar.valued or letter in grammar.attached:
            break
    return None


def _told(kind: Kind, attached: str, argv: tuple[str, ...], index: int) -> Invocation:
    if attached:
        return Invocation(kind, attached, argv[index + 1 :])
    return Invocation(kind, "".join(argv[index + 1 : index + 2]), argv[index + 2 :])


def _is_followed_by_value(grammar: _Grammar, word: str) -> bool:
    if word[:2] == "--":
        return word in grammar.long_valued
    for position, letter in enumerate(word[1:], 2):
        if letter in grammar.attached:
            return False
        if letter in grammar.valued:
            return position == len(word)
    return False


def _shell_invocation(grammar: _Grammar, argv: tuple[str, ...]) -> Invocation:
    """A shell takes its code from the first operand, behind all options: `bash -co pipefail X`."""
    has_code = reads_input = False
    index = 1
    while index < len(argv):
        word = argv[index]
        index += 1
        if word in ("-", "--"):
            break
        if word[:2] == "--":
            has_code |= word in grammar.long_code
            index += word in grammar.long_valued
        elif word[:1] in ("-", "+"):
            has_code |= word[0] == "-" and "c" in word
            reads_input |= word[0] == "-" and "s" in word
            index += sum(letter in grammar.valued for letter in word[1:])
        else:
            index -= 1
            break
    if has_code:
        return Invocation("code", "".join(argv[index : index + 1]), argv[index + 1 :])
    if reads_input or index >= len(argv) or argv[index] in ("/dev/stdin", "/dev/fd/0"):
        return Invocation("stdin", is_said=reads_input)
    return Invocation("script", argv[index], argv[index + 1 :])
