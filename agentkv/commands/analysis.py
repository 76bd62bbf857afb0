"""Reads from a bash text the programs that it runs, piece by piece between its separators.

Other text gives what could be read of it, never an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile

from agentkv.commands.programs import (
    MAX_WORDS,
    SHELLS,
    TABLES,
    TAKES_OPERANDS,
    Program,
    module_of,
    program_name,
    program_of,
    unwrap,
)

MAX_READ_CHARS = 2048
"""Read of a command, long here-documents cut out."""
MAX_PROGRAMS = 24
_MAX_DEPTH, _MAX_TOKENS, _MAX_HEREDOCS, _MAX_OPEN, _MAX_LOOPS = 3, 400, 16, 2, 6
_KEPT_CHARS, _KEY_CHARS = 400, 512
"""Kept of a here-document, since an interpreter may read it; read for a command's key."""
_SHOWN_PROGRAMS = TAKES_OPERANDS.union(
    *(names.split() for names in TABLES["name"].values()),
    (key.partition(":")[0] for keys in TABLES["key"].values() for key in keys.split()),
)
SHOWN_SUBCOMMANDS = frozenset(TABLES["words"]["shown_subcommands"].split())
_PLAIN_NAME = re.compile(r"[A-Za-z][a-z_-]{0,19}")

HEREDOC_OPENER = re.compile(
    # neither a here-string (<<<) nor, with a number or `=` behind it, a shift
    r"<(?<!<<)<(?!<)-?[ \t]{0,20}+(?![0-9=])"
    # in quotes any text of a line, else a word
    r"\\?(?P<quote>['\"])?(?P<delimiter>(?(quote)[^'\"\n]{1,64}+|[\w.!@+%:/=~^-]{1,64}+))"
    r"(?(quote)(?P=quote))"
)
_BALANCED = r"\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\)"
_TOKEN = re.compile(
    r"(?P<blank>[ \t\r]+|\\\n|(?<![^\s;&|(])\#[^\n]*+)"
    rf"|(?P<heredoc>{HEREDOC_OPENER.pattern})"
    r"|(?P<end>&&|\|\||\|&?|;;&?|[;\n]|&(?!>)|\((?!\()|\))"
    rf"|(?P<word>(?:[^\s\\'\"`$;&|<>()]++|\\.|'[^']*+(?:'|\Z)|\"(?:[^\"\\]++|\\.)*+(?:\"|\Z)"
    rf"|\$(?!\()|[$<>]{_BALANCED}|\({_BALANCED}\)|(?<==){_BALANCED}|`[^`]*+`|\(\))++)"
    r"|(?P<redirect>&?>>?[&|]?|<<<|<&?)",
    re.DOTALL,
)
_QUOTED = re.compile(r"'([^']*+)'?|\"((?:[^\"\\]++|\\.)*+)\"?|\\(.)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\"$])")
_WINDOWS_PATH = re.compile(r"[\w.:]\\+[\w.]")
_SUBSTITUTION = re.compile(rf"(?:(?<!\\)\$|^[<>])({_BALANCED})|(?<!\\)`([^`]*+)`")
_VARIABLE = re.compile(r"[$%]\{?(?:env:)?(\w{1,64})(?:\[@\])?(?::?-([^}]*))?[}%]?")
_ASSIGNED = re.compile(r"\$?(\w{1,64})=(.*)", re.DOTALL)
_KEYWORDS = re.compile(r"if|then|elif|else|do|done|[{}!]|fi|esac|for|select|while|until")
_OVER_WORDS = ("for", "select")
_LOOPS = (*_OVER_WORDS, "while", "until")
_COUNTED = re.compile(r"\w+=(\d{1,6});\w+<(=?)(\d{1,6});")
_RANGE = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})\}")
_SEQ = re.compile(r"\$\(seq (?:(\d{1,6}) )?(\d{1,6})\)")
_LEAVES = re.compile(r"\b(?:break|exit|return)\b(?!_)")
_ENDLESS = re.compile(r"while (?:true|:|\[+ 1 \]+|\(\( ?1 ?\)\)|sleep .*|! false)|until false")
_EXECUTING = frozenset(["-exec", "-execdir", "-ok", "-x", "--exec"])


@dataclass(frozen=True, slots=True)
class CommandAnalysis:
    """The programs of a bash text in the order written, and the shape of the text around them.

    `programs` leaves out a `cd` among others, and is empty if nothing runs.
    """

    text: str
    programs: tuple[Program, ...] = ()
    num_pipes: int = 0
    has_and: bool = False
    has_semicolon: bool = False
    has_redirect: bool = False
    has_loop: bool = False
    has_subshell: bool = False


def analyze_command(text: str) -> CommandAnalysis:
    """Read a bash text of any length; only its first 2 kB count, long here-documents cut out.

    Every text can be read; anything but a str raises TypeError.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"a command is a str of bash: got {text!r:.80} ({type(text).__name__}); the command "
            "of a tool call is None where the call runs none: leave that one out"
        )
    return _analyzed(text[: 16 * MAX_READ_CHARS])


@lru_cache(maxsize=32)
def _analyzed(text: str) -> CommandAnalysis:
    """Read a command once, for all that predicts, shows and learns from it."""
    found = _Found()
    text, bare = _cut_heredocs(text, found.heredocs)
    _Script(bare[:MAX_READ_CHARS], found).read()
    programs = [each for each in found.programs if each.name not in ("cd", "pushd")]
    marks = found.marks
    return CommandAnalysis(
        text[:MAX_READ_CHARS],
        tuple(programs or found.programs[:1]),
        num_pipes=marks.count("|"),
        has_and="&&" in marks,
        has_semicolon=";" in marks or "\n" in marks,
        has_redirect=">" in marks,
        has_loop="do" in marks,
        has_subshell="(" in marks,
    )


def _cut_heredocs(text: str, bodies: list[str]) -> tuple[str, str]:
    """Return the text with here-documents of 400 characters at most, and without them.

    The latter is what a shell reads; `bodies` gets what is cut out. Linear in the length.
    """
    short: list[str] = []
    bare: list[str] = []
    read_to = position = num_open = 0
    for _ in range(_MAX_HEREDOCS if "<<" in text else 0):
        opener = HEREDOC_OPENER.search(text, position)
        body = text.find("\n", opener.end()) + 1 if opener else 0
        if opener is None or not body:
            break
        closer = re.compile(rf"^[ \t]*{re.escape(opener['delimiter'])}[ \t]*$", re.MULTILINE)
        end = closer.search(text, body)
        if end is None:  # cut off, or `1 << n`
            position = opener.end()
            num_open += 1
            if num_open > _MAX_OPEN:
                break
        else:
            position = end.end()
            bodies.append(text[body : min(end.start(), body + _KEPT_CHARS)])
            short += text[read_to:body], bodies[-1].rstrip("\n"), "\n", text[end.start() : position]
            bare.append(text[read_to:body])
            read_to = position
    return "".join([*short, text[read_to:]]), "".join([*bare, text[read_to:]])


@dataclass(slots=True)
class _Found:
    """What was found in a text and in all scripts nested in it."""

    programs: list[Program] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    """Separators, `>` of redirections, `(` of subshells and `do` of loops."""
    heredocs: list[str] = field(default_factory=list)
    """What was cut out of the text, in its order."""
    variables: dict[str, str] = field(default_factory=dict)
    num_tokens: int = 0

    def change(self, first: int, **changes: object) -> None:
        self.programs[first:] = [replace(each, **changes) for each in self.programs[first:]]  # type: ignore[arg-type]


class _Script:
    """One bash text, read from left to right."""

    def __init__(self, text: str, found: _Found, depth: int = 0) -> None:
        """`depth` counts the scripts that this one is nested in."""
        self._text, self._found, self._depth = text, found, depth
        self._words: list[str] = []
        self._loop = ""
        """The keyword of a loop whose words are being read."""
        self._rounds: float | None = None
        self._loops: list[tuple[int, int, float | None]] = []
        """Per open loop the first program and character of its body, and its rounds."""
        self._lists = [0]
        """The first program of each open list, which an `&` behind it sends to the background."""
        self._has_input = self._is_piped = False
        self._stdin = ""

    def read(self) -> None:
        found, position = self._found, 0
        while position < len(self._text) and found.num_tokens < _MAX_TOKENS:
            found.num_tokens += 1
            token = _TOKEN.match(self._text, position)
            kind = token and token.lastgroup
            position = token.end() if token else position + 1
            if token is None or kind == "blank":
                continue
            if kind == "word" or (self._words[:1] == ["[["] and kind != "heredoc"):
                self._take_word(token[0], token.start())
            elif kind == "end":
                self._take_end(token[0])
            elif kind == "redirect":
                found.marks.append(">")
                self._has_input |= "<" in token[0]
                if self._words and self._words[-1].isdecimal() and token[0] != "<<<":
                    self._words.pop()
                while position < len(self._text) and self._text[position].isspace():
                    position += 1
                word = _TOKEN.match(self._text, position)
                if word is not None and word.lastgroup == "word":
                    position = word.end()
                    self._stdin = _unquoted(word[0]) if token[0] == "<<<" else self._stdin
            else:
                self._stdin = found.heredocs.pop(0) if found.heredocs else ""
                self._has_input = True
        self._end_command()
        while self._loops:
            self._end_loop(len(self._text))

    def _take_word(self, text: str, start: int) -> None:
        if not self._words and self._loop not in _OVER_WORDS and _KEYWORDS.fullmatch(text):
            if text in _LOOPS:
                self._loop, self._rounds = text, None
            elif text == "do" and len(self._loops) < _MAX_LOOPS:
                self._found.marks.append("do")
                self._loops.append((len(self._found.programs), start, self._rounds))
            elif text == "done":
                self._end_loop(start)
            return
        if len(self._words) < MAX_WORDS:
            self._words.append(_unquoted(text))
        if text[0] != "'" and self._depth < _MAX_DEPTH:
            for inner in _SUBSTITUTION.finditer(text) if "(" in text or "`" in text else ():
                self._found.marks.append("(")
                if inner[0][:3] != "$((":
                    self._read_nested(inner[2] or (inner[1] or "")[1:-1])

    def _take_end(self, text: str) -> None:
        if text == ")" and len(self._lists) == 1:
            self._words.clear()  # the label of a `case`
        self._end_command()
        found = self._found
        found.marks.append(text)
        if text == "&":
            found.change(self._lists[-1], is_background=True)
        if text == "(":
            self._lists.append(len(found.programs))
        elif text == ")" and len(self._lists) > 1:
            self._lists.pop()
        elif text in ("&", ";", "\n"):
            self._lists[-1] = len(found.programs)
        self._is_piped = text in ("|", "|&")

    def _read_nested(self, text: str) -> bool:
        """Read a text within this one; True if it runs anything."""
        num = len(self._found.programs)
        if self._depth < _MAX_DEPTH:
            _Script(text, self._found, self._depth + 1).read()
        return len(self._found.programs) > num

    def _end_loop(self, end: int) -> None:
        if self._loops:
            first, start, rounds = self._loops.pop()
            rounds = None if _LEAVES.search(self._text, start, end) else rounds
            for index, each in enumerate(self._found.programs[first:], first):
                both = None if each.rounds is None or rounds is None else each.rounds * rounds
                self._found.programs[index] = replace(each, rounds=both)

    def _end_command(self) -> None:
        words, self._words = self._words, []
        loop, self._loop = self._loop, ""
        stdin, self._stdin = self._stdin, ""
        has_input, self._has_input = self._has_input or self._is_piped, False
        if loop in _OVER_WORDS:
            self._rounds = _rounds_of(words)
        elif loop and _ENDLESS.fullmatch(f"{loop} {' '.join(words)}"):
            self._rounds = math.inf
        if words[1:2] == ["="]:  # PowerShell's `$x = ...`
            words = [f"{words[0]}={' '.join(words[2:])}"]
        for assigned in map(_ASSIGNED.fullmatch, words):
            if assigned is None:
                break
            self._found.variables[assigned[1]] = assigned[2][:200].strip("()")
        else:
            return
        first = len(self._found.programs)
        if loop not in _OVER_WORDS and words[0] != "case" and words[0][-2:] != "()":
            self._run(tuple(words), stdin)
            if has_input:
                self._found.change(first, has_input=True)

    def _run(self, words: tuple[str, ...], stdin: str) -> None:
        """Add the programs that these words run."""
        found = self._found
        if len(found.programs) >= MAX_PROGRAMS:
            return
        first = len(found.programs)
        runs = unwrap(self._expanded(words))
        argv = self._expanded(runs.argv)
        if argv != runs.argv:  # `timeout 60 $PY -m pytest`
            runs = runs._replace(argv=unwrap(argv).argv)
        name = program_name(runs.argv[0]) if runs.argv else ""
        is_shell = name in SHELLS or name in ("su", "ssh")
        reads_stdin = is_shell and program_of(runs.argv).key in (
            name,
            f"{name}:-",
            f"ssh:{runs.argv[-1]}",
        )
        script = runs.script or (stdin if reads_stdin else "")
        is_read = bool(script) and (is_shell or not runs.argv) and self._read_nested(script)
        if runs.argv and not (is_read and name in SHELLS):
            program = program_of(runs.argv)
            found.programs.insert(first, replace(program, code=program.code or stdin[:_KEPT_CHARS]))
        if script and runs.argv and not is_shell:
            self._read_nested(script)
        if runs.inner:
            self._run(runs.inner, stdin)
        if words[0] == "xargs" and not {"-n1", "-n", "-I", "-i"}.isdisjoint(words[1:4]):
            found.change(first, rounds=None)
        for executed in _executed(runs.argv) if name in ("find", "fd") else ():
            self._run(executed if executed[0] != name else (name,), "")
            found.change(first + 1, rounds=None)
        if runs.timeout_s:
            found.change(first, timeout_s=runs.timeout_s)

    def _expanded(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Replace a variable in the program's place by what the text has set it to."""
        variable = _VARIABLE.fullmatch(argv[0]) if argv else None
        if variable is None:
            return argv
        value = self._found.variables.get(variable[1]) or variable[2] or ""
        value = value.removeprefix("$(which ").rstrip(")")  # `PY=$(which python)`
        if not value and variable[1].isupper():
            value = variable[1].lower()  # `$PYTHON x.py`
        return (*value.split(), *argv[1:]) if value and value[0] != "$" else argv


def _executed(argv: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The words of each program that `find -exec` or `fd -x` runs."""
    for start in [index for index, word in enumerate(argv) if word in _EXECUTING][:4]:
        if words := tuple(takewhile(lambda word: word not in (";", "+"), argv[start + 1 :])):
            yield words[:MAX_WORDS]


def _unquoted(text: str) -> str:
    """Return a word as the shell would pass it, expansions left as written."""
    if "\\" in text and _WINDOWS_PATH.search(text):  # bash would drop what Windows needs
        return text.strip("'\"")
    return _QUOTED.sub(
        lambda part: part[1] or _ESCAPED.sub(r"\1", part[2] or "") or part[3] or "", text
    )


def _rounds_of(words: list[str]) -> float | None:
    """Return the rounds of a `for` over words, a range, `seq` or a counter; None if not said."""
    if len(words) == 1:
        counter = re.sub(r"\s", "", words[0]).strip("()")
        counted = _COUNTED.match(counter)
        if counted is None:
            return math.inf if counter[:2] == ";;" else None
        return int(counted[3]) - int(counted[1]) + (counted[2] == "=")
    values = words[2:]
    for pattern in (_RANGE, _SEQ):
        if found := pattern.fullmatch("".join(values)):
            return abs(int(found[2]) - int(found[1] or 1)) + 1
    return len(values) if values and not any(set("*?$`") & set(word) for word in values) else None


def command_key(command: str) -> str:
    """The kind of a command, fit to be kept and shown: `pytest`, `git clone`, `npm run test`.

    A program, with a subcommand or module behind it, each out of a list or, for a program, a plain
    word of letters. Nothing else of the text is in it, no argument, path or assignment: any other
    program is "other". Empty if nothing runs. Reads 512 characters: more would take 2 ms.
    """
    analysis = analyze_command(command[:_KEY_CHARS])
    lasting = (each for each in analysis.programs if each.name not in TAKES_OPERANDS)
    main = next(lasting, analysis.programs[0] if analysis.programs else None)
    if main is None:
        return ""
    module = module_of(main)
    name, *parts = (module if module.name in _SHOWN_PROGRAMS else main).key.split(":")
    is_word = re.search(rf"(?:^|[\s;&|(]){re.escape(name)}(?:[\s;&|)]|$)", analysis.text)
    if name not in _SHOWN_PROGRAMS and not (is_word and _PLAIN_NAME.fullmatch(name)):
        return "other"
    return " ".join((name, *takewhile(SHOWN_SUBCOMMANDS.__contains__, parts)))
