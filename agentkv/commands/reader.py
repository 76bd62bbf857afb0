"""Walks a bash syntax tree and collects the programs that run, in the order written."""

from __future__ import annotations

from dataclasses import replace

from tree_sitter import Node

from agentkv.commands.prefixes import unwrap
from agentkv.commands.program import INTERPRETERS, Program, program_key, program_name
from agentkv.commands.syntax import num_rounds, parse, text_of, word_of

_MAX_DEPTH = 40
_SCRIPT_DEPTH = 13
"""What a quoted script (`bash -c '...'`) uses up of the depth: three may be nested."""
_MAX_PROGRAMS = 32
_STDIN_CHARS = 400
_LOOPS = frozenset({"for_statement", "c_style_for_statement", "while_statement"})
_SUBSHELLS = frozenset({"subshell", "command_substitution", "process_substitution"})
_BUILTINS = frozenset({"declaration_command", "test_command", "unset_command"})
_LEAVES = frozenset({"comment", "raw_string", "heredoc_body", "word", "number", "variable_name"})
_PLAIN_WORDS = frozenset({"word", "raw_string", "number"})


class CommandReader:
    """One walk over one command; read the attributes when it is done."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.num_pipes = 0
        self.num_sequences = 0
        self.has_and = False
        self.has_semicolon = False
        self.has_redirect = False
        self.has_loop = False
        self.has_subshell = False
        self.loop_count: int | None = None
        self._is_piped = False
        self._loop_depth = 0

    def read_script(self, text: str, depth: int = 0) -> None:
        """Read a bash text; where it does not parse in time, its words count as one program."""
        root = parse(text)
        if root is not None:
            self._read_children(root, depth)
        elif words := tuple(text.split()[:64]):
            self._add_program(words, _MAX_DEPTH)

    def _read_children(self, node: Node, depth: int) -> None:
        first = len(self.programs)
        for child in node.children:
            kind = child.type
            if child.is_named:
                first = len(self.programs)
                self._read(child, kind, depth + 1)
            elif kind == "&":
                self._change_from(first, is_background=True)
            elif kind in ("&&", "||"):
                self.num_sequences += 1
                self.has_and |= kind == "&&"
            elif kind in (";", "\n"):
                self.num_sequences += 1
                self.has_semicolon |= kind == ";"

    def _read(self, node: Node, kind: str, depth: int) -> None:
        if kind in _LEAVES or depth > _MAX_DEPTH or len(self.programs) >= _MAX_PROGRAMS:
            return
        if kind == "command":
            self._read_command(node, depth)
        elif kind == "pipeline":
            self._read_pipeline(node, depth)
        elif kind == "redirected_statement":
            self._read_redirected(node, depth)
        elif kind in _LOOPS:
            self._read_loop(node, kind, depth)
        elif kind in _BUILTINS:
            words = tuple(text_of(node).split())
            self._read_children(node, depth)
            self._add_program(("test", *words[1:]) if kind == "test_command" else words, depth)
        else:
            self.has_subshell |= kind in _SUBSHELLS
            self._read_children(node, depth)

    def _read_command(self, node: Node, depth: int) -> None:
        words: list[str] = []
        for child in node.children:
            kind = child.type
            if kind == "file_redirect":
                self.has_redirect = True
            elif kind == "variable_assignment":
                self._read_nested(child, depth)
            elif kind not in ("herestring_redirect", "heredoc_redirect"):
                words.append(word_of(child))
                if kind not in _PLAIN_WORDS:
                    self._read_nested(child, depth)
        if words:
            self._add_program(tuple(words), depth)

    def _read_nested(self, node: Node, depth: int) -> None:
        """Programs in the substitutions inside a word; they run before the command itself."""
        text = node.text or b""
        if b"$(" in text or b"`" in text or b"<(" in text:
            self.has_subshell = True
            self._read_children(node, depth + 1)

    def _read_pipeline(self, node: Node, depth: int) -> None:
        was_piped = self._is_piped
        for child in node.children:
            if child.is_named:
                self._read(child, child.type, depth + 1)
                self._is_piped = True
            elif child.type in ("|", "|&"):
                self.num_pipes += 1
        self._is_piped = was_piped

    def _read_redirected(self, node: Node, depth: int) -> None:
        first, stdin = len(self.programs), ""
        for child in node.children:
            if child.type == "heredoc_redirect":
                stdin = stdin or _heredoc_text(child)
                self._read_behind_heredoc(child, depth)
            elif child.type == "file_redirect":
                self.has_redirect = True
            elif child.is_named:
                self._read(child, child.type, depth + 1)
        if stdin and len(self.programs) > first:
            program = self.programs[first]
            is_code = program.name in INTERPRETERS and program.key == program.name
            key = f"{program.key}:-" if is_code else program.key
            self.programs[first] = replace(program, key=key, stdin=stdin)

    def _read_behind_heredoc(self, redirect: Node, depth: int) -> None:
        """`cat <<EOF | wc` and `python - <<EOF && ls` hang the rest of the line on the redirect."""
        for part in redirect.named_children:
            if part.type in ("pipeline", "command", "list"):
                self._read(part, part.type, depth + 1)
                self.num_pipes += part.type == "command"
                self.num_sequences += part.type == "list"
            elif part.type == "file_redirect":
                self.has_redirect = True

    def _read_loop(self, node: Node, kind: str, depth: int) -> None:
        if not self.has_loop and kind == "for_statement":
            self.loop_count = num_rounds(node)
        self.has_loop = True
        self._loop_depth += 1
        self._read_children(node, depth)
        self._loop_depth -= 1

    def _add_program(self, words: tuple[str, ...], depth: int) -> None:
        found = unwrap(words)
        first = len(self.programs)
        if found.script is not None and depth + _SCRIPT_DEPTH <= _MAX_DEPTH:
            self.read_script(found.script, depth + _SCRIPT_DEPTH)
            if found.timeout_s is not None:
                self._change_from(first, timeout_s=found.timeout_s)
        if len(self.programs) > first:
            return
        name = program_name(found.argv[0])
        argv = (name, *found.argv[1:])
        self.programs.append(
            Program(
                name,
                program_key(name, argv),
                argv,
                found.timeout_s,
                is_in_loop=self._loop_depth > 0,
                is_piped=self._is_piped,
            )
        )

    def _change_from(self, first: int, **changes: object) -> None:
        self.programs[first:] = [
            replace(program, **changes)  # type: ignore[arg-type]
            for program in self.programs[first:]
        ]


def _heredoc_text(redirect: Node) -> str:
    for part in redirect.named_children:
        if part.type == "heredoc_body":
            return text_of(part)[:_STDIN_CHARS]
    return ""
