"""Reads from a bash text the programs that it runs, piece by piece between its separators.

Other text gives what could be read of it, never an error.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import dropwhile, takewhile

from agentkv.commands.programs import (
    ASSIGNMENT,
    MAX_WORDS,
    SHELLS,
    TABLES,
    TAKES_OPERANDS,
    Program,
    Wrapped,
    module_of,
    program_name,
    program_of,
    wrapped,
)

MAX_READ_CHARS = 2048
"""Read of a command, long here-documents cut out."""
MAX_PROGRAMS = 24
_MAX_DEPTH, _MAX_WRAPPERS, _MAX_TOKENS = 3, 12, 400
_MAX_HEREDOCS, _MAX_OPEN = 16, 2
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
_WORD = (
    r"(?:[^\s\\'\"`$;&|<>()]++|\\.|'[^']*+(?:'|\Z)|\"(?:[^\"\\]++|\\.)*+(?:\"|\Z)"
    rf"|\$(?!\()|[$<>]{_BALANCED}|\({_BALANCED}\)|(?<==){_BALANCED}|`[^`]*+`|\(\))++"
)
_TOKEN = re.compile(
    r"(?P<blank>[ \t\r]+|\\\n|(?<![^\s;&|(])\#[^\n]*+)"
    rf"|(?P<heredoc>{HEREDOC_OPENER.pattern})"
    rf"|(?P<redirect>\d?(?:&>>?|>>?(?!\()[&|]?|<<<|<(?!\()&?)\s*+(?:{_WORD})?)"
    r"|(?P<end>&&|\|\||\|&?|;;&?|[;\n]|&|\((?!\()|\))"
    rf"|(?P<word>{_WORD})",
    re.DOTALL,
)
_QUOTED = re.compile(r"'([^']*+)'?|\"((?:[^\"\\]++|\\.)*+)\"?|\\(.)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\"$])")
_WINDOWS_PATH = re.compile(r"[\w.:]\\+[\w.]")
_SUBSTITUTION = re.compile(rf"(?:(?<!\\)\$|^[<>])({_BALANCED})|(?<!\\)`([^`]*+)`")
_VARIABLE = re.compile(r"[$%]\{?(?:env:)?(\w{1,64})(?::?-([^}]*))?[}%]?")
_KEYWORDS = re.compile(r"if|then|elif|else|do|done|[{}!]|fi|esac|for|select|while|until")
_OVER_WORDS = ("for", "select")


@dataclass(frozen=True, slots=True)
class CommandAnalysis:
    """The programs of a bash text in the order written, and the shape of the text around them.

    `programs` leaves out a `cd` among others, and is empty if nothing runs. `marks` are separators,
    `>` of redirections, `(` of subshells and `do` of loops.
    """

    text: str
    programs: tuple[Program, ...] = ()
    marks: tuple[str, ...] = ()


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
    shown = tuple(programs or found.programs[:1])
    return CommandAnalysis(text[:MAX_READ_CHARS], shown, tuple(found.marks))


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
        if opener is None or not body or num_open > _MAX_OPEN:
            break
        closer = re.compile(rf"^[ \t]*{re.escape(opener['delimiter'])}[ \t]*$", re.MULTILINE)
        end = closer.search(text, body)
        if end is None:  # cut off, or `1 << n`
            position = opener.end()
            num_open += 1
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
    heredocs: list[str] = field(default_factory=list)
    """What was cut out of the text, in its order."""
    variables: dict[str, str] = field(default_factory=dict)
    num_tokens: int = 0


class _Script:
    """One bash text, read from left to right."""

    def __init__(self, text: str, found: _Found, depth: int = 0, num_loops: int = 0) -> None:
        """`depth` counts the scripts that this one is nested in, `num_loops` the loops."""
        self._text, self._found, self._depth = text, found, depth
        self._words: list[str] = []
        self._is_over_words = False
        """True while the words of a `for` are being read."""
        self._num_loops = self._num_loops_around = num_loops
        self._lists = [0]
        """The first program of each open list, which an `&` behind it sends to the background."""
        self._stdin = ""

    def read(self) -> None:
        found, position = self._found, 0
        while position < len(self._text) and found.num_tokens < _MAX_TOKENS:
            found.num_tokens += 1
            token = _TOKEN.match(self._text, position)
            position = token.end() if token else position + 1
            if token is None or token.lastgroup == "blank":
                continue
            if token.lastgroup == "heredoc":
                self._stdin = found.heredocs.pop(0) if found.heredocs else ""
            elif token.lastgroup == "redirect":
                found.marks.append(">")
            elif token.lastgroup == "word" or (
                self._words[:1] == ["[["] and "]]" not in self._words
            ):
                self._take_word(token[0])
            else:
                self._take_end(token[0])
        self._end_command()

    def _take_word(self, text: str) -> None:
        if not self._words and not self._is_over_words and _KEYWORDS.fullmatch(text):
            self._is_over_words = text in _OVER_WORDS
            if text == "do":
                self._found.marks.append("do")
                self._num_loops += 1
            elif text == "done":
                self._num_loops = max(self._num_loops - 1, self._num_loops_around)
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
        found, first = self._found, self._lists[-1]
        found.marks.append(text)
        if text == "&":
            found.programs[first:] = [
                replace(p, is_background=True) for p in found.programs[first:]
            ]
        if text == "(":
            self._lists.append(len(found.programs))
        elif text == ")" and len(self._lists) > 1:
            self._lists.pop()
        elif text in ("&", ";", "\n"):
            self._lists[-1] = len(found.programs)

    def _read_nested(self, text: str) -> bool:
        """Read a text within this one; True if it runs anything."""
        num = len(self._found.programs)
        if self._depth < _MAX_DEPTH:
            _Script(text, self._found, self._depth + 1, self._num_loops).read()
        return len(self._found.programs) > num

    def _end_command(self) -> None:
        words, self._words = self._words, []
        is_over_words, self._is_over_words = self._is_over_words, False
        stdin, self._stdin = self._stdin, ""
        for word in words:
            if (assigned := ASSIGNMENT.fullmatch(word)) is None:
                break
            self._found.variables[assigned[1]] = assigned[2][:200]
        is_call = words and words[0] != "case" and words[0][-2:] != "()"
        if is_call and not is_over_words:
            self._run(tuple(words), stdin)

    def _run(self, words: tuple[str, ...], stdin: str, num_wrappers: int = 0) -> None:
        """Add the programs that these words run."""
        found, first = self._found, len(self._found.programs)
        argv = self._expanded(tuple(dropwhile(ASSIGNMENT.fullmatch, words)))
        if not argv or first >= MAX_PROGRAMS:
            return
        runs = wrapped(argv) if num_wrappers < _MAX_WRAPPERS else None
        runs = runs or Wrapped(argv)
        name = program_name(argv[0])
        is_shell = name in SHELLS or name in ("su", "ssh")
        own_keys = (name, f"{name}:-", f"ssh:{argv[-1]}") if is_shell else ()
        script = runs.script
        if not script and is_shell and program_of(argv).key in own_keys:
            script = stdin
        is_read = bool(script) and self._read_nested(script)
        if runs.argv and not (is_read and name in SHELLS):
            program = replace(program_of(runs.argv), is_repeated=self._num_loops > 0)
            found.programs.insert(first, program)
        if runs.inner:
            self._run(runs.inner, stdin, num_wrappers + 1)
        if (limit_s := runs.timeout_s) and limit_s < math.inf:
            found.programs[first:] = [
                replace(each, timeout_s=min(limit_s, each.timeout_s or math.inf))
                for each in found.programs[first:]
            ]

    def _expanded(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Replace a variable in the program's place by what the text has set it to."""
        variable = _VARIABLE.fullmatch(argv[0]) if argv else None
        if variable is None:
            return argv
        value = self._found.variables.get(variable[1]) or variable[2] or ""
        if not value and variable[1].isupper():
            value = variable[1].lower()  # `$PYTHON x.py`
        return (*value.split(), *argv[1:]) if value and value[0] != "$" else argv


def _unquoted(text: str) -> str:
    """Return a word as the shell would pass it, expansions left as written."""
    if "\\" in text and _WINDOWS_PATH.search(text):  # bash would drop what Windows needs
        return text.strip("'\"")
    return _QUOTED.sub(
        lambda part: part[1] or _ESCAPED.sub(r"\1", part[2] or "") or part[3] or "", text
    )


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
