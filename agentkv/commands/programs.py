"""One program of a command: its name, the key that its runs share, and what a wrapper runs.

The names of wrappers, interpreters and options stand in `programs.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple


def tables_in(file: str) -> dict[str, Any]:
    """Read a TOML file of this folder."""
    return tomllib.loads(resources.files("agentkv.commands").joinpath(file).read_text("utf-8"))


def by_name(table: Mapping[str, str]) -> dict[str, str]:
    """Turn `{value: names}`, as the file has it, into `{name: value}`."""
    return {name: value for value, names in table.items() for name in names.split()}


TABLES = tables_in("programs.toml")
TAKES_OPERANDS, SHELLS, _TASKS, _VALUED, _GLOBAL, _SCRIPTED = (
    frozenset(TABLES["words"][name].split())
    for name in ("takes_operands", "shells", "tasks", "value_options", "global", "scripted")
)
NESTED, _MODES, _OWN_VALUED, _WRAPPERS, LIMITS = (
    {name: value.split() for names, value in TABLES[table].items() for name in names.split()}
    for table in ("nested", "modes", "own_value_options", "wrappers", "limits")
)
_RUNNERS = frozenset(name.partition(":")[0] for name in _WRAPPERS if ":" in name)
INTERPRETERS: Mapping[str, list[str]] = {
    **dict.fromkeys(SHELLS, TABLES["interpreters"]["bash"]),
    **TABLES["interpreters"],
}
MAX_WORDS = 64
_SAME = {"py": "python", "pythonw": "python", "[": "test", "[[": "test"}
ASSIGNMENT = re.compile(r"([A-Za-z_]\w{0,63})\+?=(.*)", re.DOTALL)
_SUBCOMMAND = re.compile(r":?[a-z][A-Za-z0-9:_-]{0,40}")
_NO_SUBCOMMAND = re.compile(r"[0-9]+|\w+[:+?]?=.*|\+.*")
_VERSION = re.compile(r"(python|pip|node|ruby|perl|php|gcc|clang|go)w?-?[0-9][0-9.]*")
_WINDOWS = re.compile(r"(.+)\.(?:exe|cmd|bat)", re.IGNORECASE)
_CMDLET = re.compile(r"[A-Z][a-z]+-[A-Z][A-Za-z]+")
_CODE = re.compile(r"-(?:[a-z]?c|-command|-call|-run|-eval|-print)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,9}\.?\d{0,6}|\.\d{1,6}|\d{1,3}e\d|inf(?:inity)?)([smhd]?)")
_PRODUCT = re.compile(r"\$\(\( *(\d{1,6}) *(?:\* *(\d{1,6}) *)?\)\)([smhd]?)")


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
    """The limit that a `timeout` before it sets."""
    is_repeated: bool = False
    """True in a loop: how often it runs is not known beforehand."""
    is_background: bool = False


class Wrapped(NamedTuple):
    """What the words of a command run."""

    argv: tuple[str, ...] = ()
    """The program that takes time itself, if any."""
    inner: tuple[str, ...] = ()
    """Words of the program that it runs."""
    script: str = ""
    """Bash text that it runs."""
    timeout_s: float | None = None


def duration_s(word: str) -> float | None:
    """Read seconds as coreutils do, `90`, `1.5m`, `$((60*10))`, `${N:-30}`; None for other text."""
    if word[:2] == "${" and ":-" in word:
        word = word.partition(":-")[2].replace("}", "")
    if product := _PRODUCT.fullmatch(word):
        return int(product[1]) * int(product[2] or 1) * _SECONDS[product[3]]
    found = _DURATION.fullmatch(word.lower())
    return None if found is None else float(found[1]) * _SECONDS[found[2]]


def program_name(word: str) -> str:
    """Return the base name without a version or Windows' ending: `/usr/bin/python3.11` is `python`.

    A project's own script with the name of a shell command keeps a mark: `bin/test` is `./test`.
    """
    name = word.replace("\\", "/").rsplit("/", 1)[-1] or word
    if (windows := _WINDOWS.fullmatch(name)) and windows[1].lower() not in TAKES_OPERANDS:
        name = windows[1].lower()
    elif _CMDLET.fullmatch(name):
        name = name.lower()
    if version := _VERSION.fullmatch(name):
        name = version[1]
    if "/" in word and word[0] != "/" and name in TAKES_OPERANDS:
        return f"./{name}"
    return _SAME.get(name, name)


def program_of(argv: tuple[str, ...]) -> Program:
    """Return the program that these words start, with its key."""
    name = program_name(argv[0])
    argv = (name, *argv[1:])
    if mode := next((word for word in argv[1:4] if word in _MODES.get(name, ())), None):
        return Program(name, f"{name}:{mode}", argv)
    if name not in INTERPRETERS:
        parts = () if name in TAKES_OPERANDS else subcommands(argv)
        return Program(name, ":".join((name, *parts)), argv)
    kind, what, rest = invocation(argv)
    if kind == "code":
        return Program(name, f"{name}:-{INTERPRETERS[name][0][0]}", argv)
    if kind == "module":
        return Program(name, f"{name}:-m:{what[:64]}", argv)
    script = what.replace("\\", "/").rsplit("/", 1)[-1][:64]
    task = rest[:1] if script in ("manage.py", "artisan") else ()
    return Program(name, ":".join((name, script, *task)).rstrip(":"), argv)


def module_of(program: Program) -> Program:
    """Return the module that an interpreter runs as a program, `pip` of `python -m pip`.

    The program itself if it runs none, or one with the name of a shell command.
    """
    if ":-m:" not in program.key:
        return program
    _, what, rest = invocation(program.argv)
    return program if not what or what in TAKES_OPERANDS else program_of((what, *rest))


def subcommands(argv: tuple[str, ...]) -> list[str]:
    """Return the subcommand behind the program's own options, and that one's own, if any."""
    name, words = argv[0], iter(argv[1:16])
    own, found = _OWN_VALUED.get(name, ()), list[str]()
    for word in words:
        if word in own or (word in _VALUED and "only" not in own):
            next(words, None)
        elif word[:1] == "-" or (name in ("make", "cargo") and _NO_SUBCOMMAND.fullmatch(word)):
            continue
        elif not _SUBCOMMAND.fullmatch(word):
            break
        else:
            found.append(word.lstrip(":"))
            if len(found) == 2 or word not in NESTED.get(name, ()):
                break
    return found


def invocation(argv: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """Read what an interpreter runs: its kind (code, module, script, stdin), that, and the rest."""
    code, module, valued = INTERPRETERS[argv[0]]
    has_code, index = False, 1
    while index < len(argv):
        word, index = argv[index], index + 1
        if argv[0] in ("powershell", "pwsh", "cmd"):
            # their code is all behind `-Command`, in short `-c`, or `/c`
            if word[:1] in "-/" and word[1:] and "command".startswith(word.lower().lstrip("-/")):
                return "code", " ".join(argv[index:]).strip("&{} ").replace(" & ", " ; "), ()
            continue
        if word in ("-", "-s"):
            return "stdin", "-", argv[index:]
        if word[:1] not in ("-", "+"):
            return "code" if has_code else "script", word, argv[index:]
        letters = word[1:] if word[1:2] != "-" else code[:1] if _CODE.fullmatch(word) else ""
        for position, letter in enumerate(letters, 2):
            if letter in code and argv[0] in SHELLS:
                has_code = True  # it is the first word behind all options
            elif letter in code + module:
                value = word[position:] if len(letters) > 1 else ""
                kind = "code" if letter in code else "module"
                return kind, value or "".join(argv[index : index + 1]), argv[index + (not value) :]
            elif letter in valued:
                index += position > len(letters)
                break
    return "stdin", "", ()


def wrapped(argv: tuple[str, ...]) -> Wrapped | None:
    """Read what a wrapper runs, a `make` of 60 s at most in `timeout 60 make`; None if it is none,
    or runs nothing."""
    name = program_name(argv[0])
    if name == "start-sleep":
        return Wrapped((), ("sleep", next(filter(str.isdecimal, argv), "")))
    if name == "eval":
        return Wrapped(script=" ".join(argv[1:]))
    if name in SHELLS:
        kind, what, _ = invocation((name, *argv[1:]))
        return Wrapped(argv, script=what) if kind == "code" else None
    wrapper, index = name, 1
    for _ in range(2 * (name in _RUNNERS and name not in _WRAPPERS)):  # `uv run`, `uv tool run`
        while index < len(argv) and argv[index][:1] == "-":
            index += 1 + (argv[index] in _GLOBAL)
        wrapper, index = ":".join((wrapper, *argv[index : index + 1])), index + 1
        if wrapper in _WRAPPERS:
            break
    if wrapper not in _WRAPPERS:
        return None
    spec, start = _WRAPPERS[wrapper], index
    while index < len(argv) and argv[index][:1] == "-" and argv[index] != "--":
        index += 1 + (argv[index] in spec)  # `-u bob`
    options, words = argv[start:index], argv[index:]
    scripts = [i for i, word in enumerate(argv[:-1]) if _CODE.fullmatch(word)]
    if scripts and wrapper in _SCRIPTED:
        return Wrapped(script=argv[scripts[0] + 1])
    if "marked" in spec:
        words = words[words.index("--") :] if "--" in words else ()
    limit_s = duration_s(words[0]) if name in ("timeout", "gtimeout") and words else None
    rest = words[("1" in spec) + (words[:1] == ("--",)) :]
    idle = {"-d", "--detach", "-N", "-dit"} if "waits" in spec else {"-v", "-V"}
    is_idle = ("waits" in spec or name == "command") and not idle.isdisjoint(options)
    if not rest or is_idle or (rest[0] in _TASKS and "tasks" in spec):
        return None
    own = argv[: index + 1] if "waits" in spec else ()
    if name == "ssh" or (len(rest) == 1 and " " in rest[0]):
        return Wrapped(own, (), " ".join(rest), limit_s)
    return Wrapped(own, rest[:MAX_WORDS], "", limit_s)
