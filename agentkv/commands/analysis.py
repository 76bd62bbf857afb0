"""Reads from a bash text the programs that it runs, by a walk over tree-sitter's syntax tree.

Called by the predictors of durations, and by code that looks into tool calls. Other text
gives what could be read of it, never an error. Knows nothing of durations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import islice, takewhile
from operator import attrgetter

from tree_sitter import Node

from agentkv.commands.prefixes import Unwrapped, runs_for_each, tighter, unwrap
from agentkv.commands.program import (
    INTERPRETERS,
    SHOWN_PROGRAMS,
    SHOWN_SUBCOMMANDS,
    TAKES_OPERANDS,
    Program,
    module_of,
)
from agentkv.commands.quantities import is_endless, num_rounds
from agentkv.commands.shell import MAX_PROGRAMS, ProgramList, product
from agentkv.commands.syntax import MAX_ANALYZED_BYTES, elide_heredocs, parse, text_of, word_of

_MAX_DEPTH = 40
_SCRIPT_DEPTH = 13
"""Depth that a quoted script (`bash -c '...'`) costs: three may be nested."""
_STDIN_CHARS = 400
_MAX_ASSIGNED_CHARS = 200
_MAX_WORDS = 64
"""Read of a program that another one runs."""
_LOOPS = frozenset({"for_statement", "c_style_for_statement", "while_statement"})
_BODIES = frozenset({"do_group", "compound_statement"})
_BRANCHES = frozenset({"elif_clause", "else_clause"})
_SUBSHELLS = frozenset({"subshell", "command_substitution", "process_substitution"})
_BUILTINS = frozenset({"declaration_command", "test_command", "unset_command"})
_LEAVES = frozenset({"comment", "raw_string", "heredoc_body", "word", "number", "variable_name"})
_PLAIN_WORDS = frozenset({"word", "raw_string", "number"})

_FINDERS = frozenset({"find", "fd", "fdfind"})
_ONE_BY_ONE = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-x", "--exec"})
_TOGETHER = frozenset({"-X", "--exec-batch"})
_EXECUTING = _ONE_BY_ONE | _TOGETHER
_MAX_EXECUTED = 8
_CALL_OPERATOR = re.compile(r"(^|[;|{(]\s)[ \t]*&[ \t]+(?=['\"$.{\w])", re.MULTILINE)
_PLAIN_NAME = re.compile(r"[A-Za-z][a-z_-]{0,19}")


@dataclass(frozen=True, slots=True)
class CommandAnalysis:
    """The programs of a bash text in the order written, and the shape of the text around them.

    `programs` leaves out a `cd` among others, and is empty if nothing runs.
    """

    text: str
    programs: tuple[Program, ...] = ()
    num_pipes: int = 0
    num_sequences: int = 0
    """`&&`, `||`, `;` and line ends between commands."""
    has_and: bool = False
    has_semicolon: bool = False
    has_redirect: bool = False
    has_loop: bool = False
    has_subshell: bool = False
    loop_count: int | None = None
    """Rounds of the first outermost loop if the text gives them, as `for i in 1 2 3` does."""


_shape_of = attrgetter(*(field.name for field in fields(CommandAnalysis)[2:]))
"""Everything but text and programs, which a walk counts under the same names."""


def analyze_command(text: str) -> CommandAnalysis:
    """Read a bash text of any length; only its first 2 kB count, long here-documents cut out.

    Every text can be read; anything but a str raises TypeError. Median 20 microseconds; at most
    about 46 ms on adversarial text, three times that if it nests scripts. The last 2,048 texts are
    remembered: 2.5 MiB of usual ones, 40 MiB of the worst.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"a command is a str of bash: got {text!r:.80} ({type(text).__name__}); the command "
            "of a tool call is None where the call runs none: leave that one out"
        )
    return _analyze(elide_heredocs(text[: 64 * MAX_ANALYZED_BYTES])[:MAX_ANALYZED_BYTES])


@lru_cache(maxsize=2048)
def _analyze(text: str) -> CommandAnalysis:
    walk = _Walk()
    walk.read_script(text)
    programs = [program for program in walk.programs if program.name not in ("cd", "pushd")]
    return CommandAnalysis(text, tuple(programs or walk.programs[:1]), *_shape_of(walk))


def forget_analyses() -> None:
    """Clear the cache of analysed texts, so that a measurement starts cold."""
    _analyze.cache_clear()


class _Walk:
    """One walk over the syntax tree of a command, which collects programs and shape."""

    num_pipes = num_sequences = 0
    has_and = has_semicolon = has_redirect = has_loop = has_subshell = False
    loop_count: int | None = None

    def __init__(self) -> None:
        self._found = ProgramList()
        self.programs: list[Program] = self._found.programs
        self._stdin = ""
        """The here-document or here-string fed to the node being read."""

    def read_script(self, text: str, depth: int = 0) -> None:
        """Read a bash text. PowerShell's `& PROGRAM`, no bash, is that program."""
        self._read_children(parse(_CALL_OPERATOR.sub(r"\1", text)), depth)

    def _read_children(self, node: Node, depth: int) -> None:
        first = len(self.programs)
        is_alternative = False
        for child in node.children:
            kind = child.type
            if child.is_named:
                first = len(self.programs)
                self._read(child, kind, depth + 1)
                if is_alternative or kind in _BRANCHES:
                    self._found.change(first, is_alternative=True)
                is_alternative = kind == "case_item"
            elif kind == "&":
                self._found.start_job_from(first)
            elif kind in ("&&", "||"):
                self.num_sequences += 1
                self.has_and |= kind == "&&"
                is_alternative = kind == "||"
            elif kind in (";", "\n"):
                self.num_sequences += 1
                self.has_semicolon |= kind == ";"

    def _read(self, node: Node, kind: str, depth: int) -> None:
        if kind in _LEAVES or depth > _MAX_DEPTH or len(self.programs) >= MAX_PROGRAMS:
            return
        if kind == "command":
            self._read_command(node, depth)
        elif kind == "pipeline":
            self._read_pipeline(node, depth)
        elif kind == "redirected_statement":
            self._read_redirected(node, depth)
        elif kind in _LOOPS:
            self._read_loop(node, kind, depth)
        elif kind == "function_definition":
            first = len(self.programs)
            self._read_children(node, depth)
            name = node.child_by_field_name("name")
            self._found.define("" if name is None else text_of(name), first)
        elif kind in _BUILTINS:
            words = tuple(text_of(node).split())
            self._read_children(node, depth)
            self._add_program(("test", *words[1:]) if kind == "test_command" else words, depth)
        else:
            if kind == "variable_assignment":
                self._found.jobs.assign(text_of(node))
                variable, _, value = text_of(node)[:_MAX_ASSIGNED_CHARS].partition("=")
                self._found.assign(variable, value)
            elif kind == "ERROR" and any(child.type == "heredoc_start" for child in node.children):
                # a here-document whose end was cut off
                self._found.change(len(self.programs) - 1, has_input=True)
            self.has_subshell |= kind in _SUBSHELLS
            self._read_children(node, depth)

    def _read_command(self, node: Node, depth: int) -> None:
        words: list[str] = []
        here_string = None
        for child in node.children:
            kind = child.type
            if kind == "file_redirect":
                self.has_redirect = True
            elif kind == "variable_assignment":
                self._read_nested(child, depth)
            elif kind == "herestring_redirect":
                here_string = "".join(map(word_of, child.named_children[-1:]))
            elif kind != "heredoc_redirect":
                words.append(word_of(child))
                if kind not in _PLAIN_WORDS:
                    self._read_nested(child, depth)
        if words and here_string is None:
            self._add_program(tuple(words), depth)
        elif words and here_string is not None:
            first, outer = len(self.programs), self._stdin
            self._stdin = here_string
            self._add_program(tuple(words), depth)
            self._stdin = outer
            self._found.change(first, has_input=True)

    def _read_nested(self, node: Node, depth: int) -> None:
        """Read the programs in the substitutions of a word, which run before the command."""
        text = node.text or b""
        if b"$(" in text or b"`" in text or b"<(" in text:
            self.has_subshell = True
            self._read_children(node, depth + 1)

    def _read_pipeline(self, node: Node, depth: int) -> None:
        was_piped = self._found.is_piped
        for child in node.children:
            if child.is_named:
                self._read(child, child.type, depth + 1)
                self._found.is_piped = True
            elif child.type in ("|", "|&"):
                self.num_pipes += 1
        self._found.is_piped = was_piped

    def _read_redirected(self, node: Node, depth: int) -> None:
        first = fed = len(self.programs)
        outer, has_input = self._stdin, False
        heredocs = [child for child in node.children if child.type == "heredoc_redirect"]
        if heredocs:
            body = (part for part in heredocs[0].named_children if part.type == "heredoc_body")
            self._stdin = "".join(map(text_of, islice(body, 1)))
        for child in node.children:
            if child.type == "heredoc_redirect":
                fed = max(fed, len(self.programs))
                self._read_behind_heredoc(child, first, depth)
            elif child.type == "file_redirect":
                self.has_redirect = True
                text = child.text or b""
                has_input |= b"<" in text[:2]
                if b"(" in text:
                    self._read_nested(child, depth)
            elif child.is_named:
                self._read(child, child.type, depth + 1)
                fed = len(self.programs)
        stdin, self._stdin = self._stdin[:_STDIN_CHARS] if heredocs else "", outer
        if has_input or heredocs:
            self._found.change(first, fed, has_input=True)
        if stdin and fed > first:
            program = self.programs[first]
            is_code = program.name in INTERPRETERS and program.key == program.name
            key = f"{program.key}:-" if is_code else program.key
            self._found.change(first, first + 1, key=key, stdin=stdin)

    def _read_behind_heredoc(self, redirect: Node, first: int, depth: int) -> None:
        """Read the rest of a line such as `cat <<EOF | wc`, which hangs on the redirect."""
        for part in redirect.named_children:
            if part.type in ("pipeline", "command", "list"):
                self._read(part, part.type, depth + 1)
                self.num_pipes += part.type == "command"
                self.num_sequences += part.type == "list"
            elif part.type == "file_redirect":
                self.has_redirect = True
            elif part.type == "ERROR" and part.text == b"&":  # the grammar has none in this place
                self._found.start_job_from(first)

    def _read_loop(self, node: Node, kind: str, depth: int) -> None:
        found = self._found
        is_first, self.has_loop = not self.has_loop, True
        rounds, outer_rounds, outer_is_left = num_rounds(node), found.rounds, found.is_left
        first = len(self.programs)
        found.is_left = False
        for child in node.children:
            if kind != "while_statement" and child.type not in _BODIES:
                self._read_children(child, depth + 1)
                first = len(self.programs)
                continue
            found.rounds = product(outer_rounds, rounds)
            found.loop_depth += 1
            if child.is_named:
                self._read(child, child.type, depth + 1)
            found.loop_depth -= 1
            found.rounds = outer_rounds
        if found.is_left:
            rounds = None
            found.change(first, rounds=None)
        elif is_endless(node):
            found.change(first, first + 1, is_endless=True)
        if is_first:
            self.loop_count = rounds
        found.is_left = outer_is_left or found.leaves_shell_from(first)

    def _add_program(self, words: tuple[str, ...], depth: int) -> None:
        words = self._found.expanded(words) if words[0][:1] in ("$", "%") else words
        is_full = depth > _MAX_DEPTH or len(self.programs) >= MAX_PROGRAMS
        if is_full or not words or self._found.call(words[0]):
            return
        first = len(self.programs)
        found = unwrap(words)
        if found.argv[0][:1] in ("$", "%") and (argv := self._found.expanded(found.argv)):
            within = unwrap(argv)  # `timeout 60 $PY -m pytest`
            found = within._replace(timeout_s=tighter(found.timeout_s, within.timeout_s))
        if found.counts_itself or not self._read_text(found, depth):
            self._found.append(found.argv)
        if found.inner:
            self._add_program(found.inner[:_MAX_WORDS], depth + 1)
        elif found.counts_itself:
            self._read_text(found, depth)
        if found.counts_itself and len(self.programs) > first + 1:
            self._found.change(first, first + 1, is_runner=True)
        if runs_for_each(words):
            self._found.change(first, is_in_loop=True, rounds=None)
        if found.argv[0] in _FINDERS:
            for executed, is_repeated in _executed(found.argv):
                begin = len(self.programs)
                self._add_program(executed, depth + 1)
                if is_repeated:
                    self._found.change(begin, is_in_loop=True, rounds=None)
        if found.timeout_s is not None:
            self._found.limit_from(first, found.timeout_s)

    def _read_text(self, found: Unwrapped, depth: int) -> bool:
        """Read the bash text given to a program; True if it runs anything."""
        script = self._stdin if found.reads_script else found.script
        if not script or depth + _SCRIPT_DEPTH > _MAX_DEPTH:
            return False
        first = len(self.programs)
        if found.reads_script:
            self._stdin = ""
        self.read_script(script, depth + _SCRIPT_DEPTH)
        return len(self.programs) > first


def _executed(argv: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The words of each program that `find -exec` or `fd -x` runs, and whether once per file."""
    start = 1
    for _ in range(_MAX_EXECUTED):
        while start < len(argv) and argv[start] not in _EXECUTING:
            start += 1
        end = start + 1
        while end < len(argv) and argv[end] != ";" and argv[end - 1 : end + 1] != ("{}", "+"):
            end += 1
        if end <= start + 1:
            return
        is_together = argv[start] in _TOGETHER or argv[end : end + 1] == ("+",)
        yield argv[start + 1 : min(end, start + 1 + _MAX_WORDS)], not is_together
        start = end + 1


def command_key(command: str) -> str:
    """The kind of a command, fit to be kept and shown: `pytest`, `git clone`, `npm run test`.

    A program, with a subcommand or module behind it, each out of a list or, for a program, a plain
    word of letters. Nothing else of the text is in it, no argument, path or assignment: any other
    program is "other". Empty if nothing runs. Costs what `analyze_command` does.
    """
    analysis = analyze_command(command)
    programs = analysis.programs
    lasting = (each for each in programs if each.name not in TAKES_OPERANDS)
    main = next(lasting, programs[0] if programs else None)
    if main is None:
        return ""
    module = module_of(main)
    if module is not None and module.name in SHOWN_PROGRAMS:
        main = module
    name, *parts = main.key.split(":")
    if name not in SHOWN_PROGRAMS and not _is_plain_word(name, analysis.text):
        return "other"
    return " ".join((name, *takewhile(SHOWN_SUBCOMMANDS.__contains__, parts)))


def _is_plain_word(name: str, text: str) -> bool:
    """Whether a program's name is all of a word of the text, so no path, and of letters alone."""
    if not _PLAIN_NAME.fullmatch(name):
        return False
    return re.search(rf"(?:^|[\s;&|(]){name}(?:[\s;&|)]|$)", text) is not None
