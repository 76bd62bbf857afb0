"""One program that a command runs, the key under which its runs compare, and its inline code.

`shell` makes the programs of a command; the predictors of durations ask what kind a program is.
Knows nothing of syntax: it is given words.
"""

from __future__ import annotations

import base64
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import takewhile
from typing import Any, Literal, NamedTuple, TypeVar

_Value = TypeVar("_Value")


def word_set(text: str) -> frozenset[str]:
    """The words of a text, for tables that read best as text."""
    return frozenset(text.split())


def by_name(table: Mapping[str, _Value]) -> dict[str, _Value]:
    """A table with an entry for each name, from one whose keys list the names of like programs."""
    return {name: value for names, value in table.items() for name in names.split()}


def tables_in(room: str, file: str) -> dict[str, Any]:
    """The tables of a file of agentkv.commands or another room."""
    return tomllib.loads(resources.files(f"agentkv.{room}").joinpath(file).read_text("utf-8"))


TABLES = tables_in("commands", "programs.toml")
_WORDS = {kind: word_set(text) for kind, text in TABLES["words"].items()}
_NESTED, _MODES, _VALUED, _ONLY_VALUED, LIMITS = (
    by_name({names: word_set(text) for names, text in TABLES[kind].items()})
    for kind in ("nested", "modes", "value_options", "only_value_options", "limits")
)
TAKES_OPERANDS, RUNS_TASKS = _WORDS["takes_operands"], _WORDS["runs_tasks"]
SHOWN_PROGRAMS = _WORDS["shown_programs"] | TAKES_OPERANDS
SHOWN_SUBCOMMANDS = _WORDS["shown_subcommands"]
_NO_SUBCOMMAND = {"make": re.compile(r"[0-9]+|\w+[:+?]?=.*"), "cargo": re.compile(r"\+.*")}
"""Words before the subcommand: `make -j 8 V=1 test`, `cargo +nightly test`."""
_SUBCOMMAND = re.compile(r"[a-z][a-z0-9:_-]{0,30}")
_MIX, _GRADLE = re.compile(r"[a-z][a-z0-9._]{0,30}"), re.compile(r":?[a-z][A-Za-z0-9:_-]{0,60}")
_OWN_SUBCOMMANDS = {"mix": _MIX, "gradle": _GRADLE, "gradlew": _GRADLE}
_VERSION_SUFFIX = re.compile(r"^(python|pip|node|ruby|perl|php|gcc|clang|go)-?[0-9][0-9.]*$")
_WINDOWS_PROGRAM = re.compile(r"(.+)\.(exe|cmd|bat)", re.IGNORECASE)
_CMDLET = re.compile(r"[A-Z][a-z]+-[A-Z][A-Za-z]+")
_LAUNCHERS = {"py": "python", "pythonw": "python"}
_SCRIPT_CHARS = 64


@dataclass(frozen=True, slots=True)
class Program:
    """One program with its words as the shell would pass them.

    `key` is the name with the subcommand, module, script or task that distinguishes its runs:
    `python:-m:pytest`, `git:status`, `pip:install`, `npm:run:test`.
    """

    name: str
    key: str
    argv: tuple[str, ...]
    timeout_s: float | None = None
    """The limit of the `timeout` before it, for all its rounds together."""
    is_background: bool = False
    """True if the command does not wait for the program."""
    job: int | None = None
    """The number of the background job it runs in; a `wait` may await it."""
    is_in_loop: bool = False
    rounds: int | None = 1
    """Number of runs; None if the text does not say."""
    is_endless: bool = False
    """True at the head of a loop that nothing in the text ends."""
    is_alternative: bool = False
    """True if an earlier program has to fail or not to run: behind `||`, in a further branch."""
    is_piped: bool = False
    """True for a reader of another program's output."""
    has_input: bool = False
    """True for a reader of a pipe, a file or a here-document."""
    stdin: str = ""
    """The beginning of the here-document fed to it."""
    code: str = ""
    """The code that an interpreter is given on its command line."""
    is_runner: bool = False
    """True for what runs other programs in a container or on another host; those come next."""


def program_name(word: str) -> str:
    """The base name without a version: `/usr/bin/python3.11` is `python`.

    A project's own script with the name of a shell command keeps a mark: `bin/test` is `./test`.
    """
    if word.startswith(("$(", "`")):
        return "$(...)"  # it runs the output of another program
    name = base_name(word)
    match = _VERSION_SUFFIX.match(name)
    if match:
        return match[1]
    is_own_script = "/" in word and word[0] != "/" and name in TAKES_OPERANDS
    return f"./{name}" if is_own_script else name


def base_name(word: str) -> str:
    """The last part of a path; Windows' `py\\python.exe` is `python`, `npm.cmd` is `npm`."""
    name = word.replace("\\", "/").rsplit("/", 1)[-1] or word
    if windows := _WINDOWS_PROGRAM.fullmatch(name):
        bare = windows[1].lower()
        is_program = windows[2].lower() == "exe" or bare in SHOWN_PROGRAMS - TAKES_OPERANDS
        name = bare if is_program or bare == "mvnw" else name
    elif _CMDLET.fullmatch(name):
        name = name.lower()
    return _LAUNCHERS.get(name, name)


def program_key(name: str, argv: tuple[str, ...]) -> str:
    """The name and the subcommand, module, script or task that follows it."""
    return key_and_code(name, argv)[0]


def key_and_code(name: str, argv: tuple[str, ...]) -> tuple[str, str]:
    """The program's key, and the code that an interpreter is given on its command line."""
    if modes := _MODES.get(name):
        options = takewhile(lambda word: word[:1] == "-", argv[1:12])
        if mode := next((word for word in options if word in modes), None):
            return f"{name}:{mode}", ""
    if name in INTERPRETERS:
        found = invocation(name, argv)
        return _interpreter_key(name, found), found.what if found.kind == "code" else ""
    if name in TAKES_OPERANDS:
        return name, ""
    return ":".join((name, *_subcommands(name, argv))), ""


def module_argv(name: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the module that an interpreter runs and the words behind it; empty if it runs none."""
    found = invocation(name, argv) if name in INTERPRETERS else None
    return (found.what, *found.arguments) if found and found.kind == "module" else ()


def module_of(program: Program) -> Program | None:
    """Return the module that an interpreter runs as a program: `pip` of `python -m pip`.

    None if it runs none, or one with the name of a shell command: `python -m test`.
    """
    argv = module_argv(program.name, program.argv)
    if not argv or argv[0] in TAKES_OPERANDS:
        return None
    return replace(program, name=argv[0], key=program_key(argv[0], argv), argv=argv)


def behind_verb(name: str, key: str) -> str:
    """Return what follows a verb that has subcommands in a key: `clean` of `npm:run:clean`.

    Everything behind the name if it has no such verb.
    """
    rest = key.partition(":")[2]
    verb, _, own = rest.partition(":")
    return own if own and verb in _NESTED.get(name, ()) else rest


def _subcommands(name: str, argv: tuple[str, ...]) -> list[str]:
    """The word behind the program's own options if it looks like a subcommand, and its own one."""
    found: list[str] = []
    common = _WORDS["value_options"] | _VALUED.get(name, frozenset())
    value_options = _ONLY_VALUED.get(name, common)
    skipped = _NO_SUBCOMMAND.get(name)
    pattern = _OWN_SUBCOMMANDS.get(name, _SUBCOMMAND)
    words = iter(argv[1:12])
    for word in words:
        if word in value_options:
            next(words, None)
        elif word[:1] == "-" or (skipped is not None and skipped.fullmatch(word)):
            continue
        elif not pattern.fullmatch(word):
            break
        else:
            found.append(word.lstrip(":"))
            if len(found) == 2 or word not in _NESTED.get(name, ()):
                break
    return found


def _interpreter_key(name: str, found: Invocation) -> str:
    if found.kind == "code":
        return f"{name}:-{_GRAMMARS[name].code[0]}"
    if found.kind == "module" and found.what:
        return f"{name}:-m:{found.what[:_SCRIPT_CHARS]}"
    if found.kind == "script":
        script = found.what.replace("\\", "/").rsplit("/", 1)[-1][:_SCRIPT_CHARS]
        task = found.arguments[:1] if script in _WORDS["task_scripts"] else ()
        return ":".join((name, script, *task))
    return f"{name}:-" if found.kind == "stdin" and found.is_explicit else name


# Interpreters: code on the command line, a module, a script, or standard input.

_Kind = Literal["code", "module", "script", "stdin"]
_MAX_WORDS = 32


class Invocation(NamedTuple):
    """The code, module or script (`what`) that an interpreter runs, and the words behind it."""

    kind: _Kind
    what: str = ""
    arguments: tuple[str, ...] = ()
    is_explicit: bool = True
    """False for a bare `python` or `bash`, which reads its input without a word that says so."""


class _Grammar(NamedTuple):
    """An interpreter's options: letters of one-letter ones by their value, and long ones."""

    code: str = ""
    module: str = ""
    valued: str = ""
    attached: str = ""
    """Their value is the rest of the word, even if empty: `perl -Mstrict`."""
    long_valued: Sequence[str] = ()
    long_code: Sequence[str] = ()
    is_shell: bool = False


_NODE = ("--require", "--import", "--loader", "--experimental-loader", "--conditions")
_SHELL = _Grammar("c", valued="oO", long_valued=("--rcfile", "--init-file"), is_shell=True)
_GRAMMARS = {
    "python": _Grammar("c", "m", "WXQ", long_valued=("--check-hash-based-pycs", "--jit")),
    "node": _Grammar("ep", valued="rC", long_valued=_NODE, long_code=("--eval", "--print")),
    "ruby": _Grammar("e", valued="ICEr", attached="WKTx"),
    "perl": _Grammar("eE", valued="I", attached="MmFDiCx"),
    "php": _Grammar("r", valued="dcSt", long_code=("--run",)),
    "Rscript": _Grammar("e"),
    **dict.fromkeys(("bash", "sh", "zsh", "dash", "ksh"), _SHELL),
    "fish": _Grammar("c", valued="dDf", long_code=("--command",), is_shell=True),
    **dict.fromkeys(("powershell", "pwsh", "cmd"), _Grammar("c", is_shell=True)),
}
INTERPRETERS = frozenset(_GRAMMARS)
SHELLS = frozenset(name for name, grammar in _GRAMMARS.items() if grammar.is_shell)


def invocation(name: str, argv: tuple[str, ...]) -> Invocation:
    """Read what one of INTERPRETERS runs, from its first 32 words."""
    grammar = _GRAMMARS[name]
    if name in ("powershell", "pwsh", "cmd"):
        return _windows_invocation(name, argv[:_MAX_WORDS])
    if grammar.is_shell:
        return _shell_invocation(grammar, argv[:_MAX_WORDS])
    index = 1
    while index < min(len(argv), _MAX_WORDS):
        word = argv[index]
        index += 1
        if word == "-":
            return Invocation("stdin")
        if word == "--" and index < len(argv):
            return Invocation("script", argv[index], argv[index + 1 :])
        if word[:1] != "-":
            return Invocation("script", word, argv[index:])
        kind, value = _option(grammar, word)
        if kind and not value:  # it is the next word
            value = "".join(argv[index : index + 1])
            index += 1
        if kind == "code" or kind == "module":
            return Invocation(kind, value, argv[index:])
    return Invocation("stdin", is_explicit=False)


def _option(grammar: _Grammar, word: str) -> tuple[_Kind | Literal["other"] | None, str]:
    """The kind of value that an option takes, None without one, and the value attached to it."""
    if word[:2] == "--":
        name, _, value = word.partition("=")
        if name in grammar.long_code:
            return "code", value
        return "other" if word in grammar.long_valued else None, ""
    for position, letter in enumerate(word[1:], 2):
        if letter in grammar.code:
            return "code", word[position:]
        if letter in grammar.module:
            return "module", word[position:]
        if letter in grammar.valued:
            return "other", word[position:]
        if letter in grammar.attached:
            break
    return None, ""


def _shell_invocation(grammar: _Grammar, argv: tuple[str, ...]) -> Invocation:
    """Read a shell, whose code is the first operand behind all options: `bash -co pipefail X`."""
    has_code = reads_input = False
    index = 1
    while index < len(argv) and argv[index][:1] in ("-", "+"):
        word = argv[index]
        index += 1
        if word in ("-", "--"):
            break
        if word[:2] == "--":
            has_code |= word in grammar.long_code
            index += word in grammar.long_valued
        else:
            has_code |= word[0] == "-" and "c" in word
            reads_input |= word[0] == "-" and "s" in word
            index += sum(letter in grammar.valued for letter in word[1:])
    if has_code:
        return Invocation("code", "".join(argv[index : index + 1]), argv[index + 1 :])
    if reads_input or index >= len(argv) or argv[index] in ("/dev/stdin", "/dev/fd/0"):
        return Invocation("stdin", is_explicit=reads_input)
    return Invocation("script", argv[index], argv[index + 1 :])


def _windows_invocation(name: str, argv: tuple[str, ...]) -> Invocation:
    """Read PowerShell or cmd: their code is all behind `-Command`, in short `-c`, or `/c`."""
    index = 1
    while index < len(argv) and argv[index][:1] in ("-", "/"):
        option = argv[index].lower().lstrip("-/")
        code, index = argv[index + 1 :], index + 1
        text = _as_text(code)
        text = text.strip("&{} ") if text.lstrip("& ")[:1] == "{" else text
        if name == "cmd":
            if option in ("c", "k"):
                # `&` runs one after the other here
                return Invocation("code", re.sub(r"(?<![&>])&(?![&0-9])", ";", text))
        elif option and "command".startswith(option):
            return Invocation("code", text)
        elif option in ("e", "ec") or (option[:2] == "en" and "encodedcommand".startswith(option)):
            raw = base64.b64decode("".join(code[:1]).encode("ascii", "ignore") + b"==")
            return Invocation("code", raw.decode("utf-16-le", "replace"))
        elif option and "file".startswith(option):
            return Invocation("script", "".join(code[:1]), code[1:])
        index += option in _WORDS["powershell_options"]
    rest = argv[index:]
    if not rest or name == "cmd":
        return Invocation("stdin", is_explicit=False)
    if rest[0].lower().endswith(".ps1"):
        return Invocation("script", rest[0], rest[1:])
    return Invocation("code", _as_text(rest))


def _as_text(words: tuple[str, ...]) -> str:
    quoted = (shlex.quote(word) if " " in word else word for word in words)
    return words[0] if len(words) == 1 else " ".join(quoted)
