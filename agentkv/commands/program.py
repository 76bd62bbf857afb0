"""One program that a command runs, and the key under which its runs are comparable."""

from __future__ import annotations

import re
from dataclasses import dataclass

# After these the first word is an operand (a file, a pattern), never a subcommand.
_TAKES_OPERANDS = frozenset(
    """
    [ alias awk base64 basename bc break cat cd chmod chown cksum cmp column comm continue cp curl
    cut date dd declare df diff dirname du echo ed egrep eval exit export expr false fd fgrep file
    find fold gawk getent grep gunzip gzip hash head hexdump hostname id install jq kill killall
    less ln local ls lsof lz4 mapfile md5sum mkdir mktemp more mv nc nl nm nproc od patch perl
    pgrep ping pkill popd printenv printf ps pushd pwd read readlink readonly realpath return rev
    rg rm rmdir rsync scp sed seq set sha1sum sha256sum shift shuf sleep sort source split ssh stat
    strings tac tail tar tee test touch tr trap tree true truncate type umask unalias uname uniq
    unset unzip vi vim wait watch wc wget which who whoami xargs xxd xz yes yq zcat zip zstd
    """.split()  # noqa: SIM905 - a table of 120 words reads best as text
)
# Their subcommand names a task, which is what distinguishes one run from the next.
_RUNS_TASKS = frozenset({"bun", "deno", "make", "mise", "npm", "pnpm", "rake", "task", "yarn"})
_TASK_VERBS = frozenset({"run", "run-script", "exec", "task", "r"})
INTERPRETERS = frozenset({"python", "node", "ruby", "perl", "php", "bash", "sh", "zsh", "Rscript"})
_TASK_SCRIPTS = frozenset({"manage.py", "artisan"})
_TWO_LEVELS = frozenset({"aws", "docker", "gcloud", "gh", "kubectl", "podman", "az", "uv"})
_NESTED = frozenset({"compose", "container", "image", "buildx", "pr", "run", "issue", "pip", "s3"})
# Options of the program itself that take a value and stand before its subcommand.
_VALUE_OPTIONS = frozenset(
    {"-C", "-c", "--git-dir", "--work-tree", "-n", "--namespace", "--prefix", "-f", "--file"}
)
_SUBCOMMAND = re.compile(r"[a-z][a-z0-9:_-]{0,30}")
_VERSION_SUFFIX = re.compile(r"^(python|pip|node|ruby|perl|php|gcc|clang|go)-?[0-9][0-9.]*$")
_SCRIPT_CHARS = 64


@dataclass(frozen=True, slots=True)
class Program:
    """One program with its words as the shell would pass them.

    `key` adds to the name what tells its runs apart: `python:-m:pytest`, `git:status`,
    `pip:install`, `npm:run:test`. `timeout_s` is the limit a `timeout` before it sets.
    """

    name: str
    key: str
    argv: tuple[str, ...]
    timeout_s: float | None = None
    is_background: bool = False
    is_in_loop: bool = False
    is_piped: bool = False
    """It reads another program's output."""
    stdin: str = ""
    """The beginning of the here-document fed to it."""


def program_name(word: str) -> str:
    """The base name without a version: `/usr/bin/python3.11` is `python`.

    A project's own script that is called like a shell command keeps a mark: `bin/test` is `./test`.
    """
    name = word.rsplit("/", 1)[-1] or word
    match = _VERSION_SUFFIX.match(name)
    if match:
        return match[1]
    is_own_script = "/" in word and word[0] != "/" and name in _TAKES_OPERANDS
    return f"./{name}" if is_own_script else name


def program_key(name: str, argv: tuple[str, ...]) -> str:
    """The name and the subcommand, module, script or task that follows it."""
    if name in INTERPRETERS:
        return _interpreter_key(name, argv)
    if name in _TAKES_OPERANDS:
        return name
    subcommands = _subcommands(argv)
    if not subcommands:
        return name
    key = f"{name}:{subcommands[0]}"
    has_second = (
        (name in _RUNS_TASKS and subcommands[0] in _TASK_VERBS)
        or (name in _TWO_LEVELS and subcommands[0] in _NESTED)
    ) and len(subcommands) > 1
    return f"{key}:{subcommands[1]}" if has_second else key


def _subcommands(argv: tuple[str, ...]) -> list[str]:
    """Up to 2 words after the program's own options that look like subcommands."""
    found: list[str] = []
    words = iter(argv[1:8])
    for word in words:
        if word.startswith("-") and not found:
            if word in _VALUE_OPTIONS:
                next(words, None)
        elif not _SUBCOMMAND.fullmatch(word):
            break
        else:
            found.append(word)
            if len(found) == 2:
                break
    return found


def _interpreter_key(name: str, argv: tuple[str, ...]) -> str:
    for index, word in enumerate(argv[1:8], 1):
        if word == "-m" and index + 1 < len(argv):
            return f"{name}:-m:{argv[index + 1][:_SCRIPT_CHARS]}"
        if word in ("-c", "-e", "-"):
            return f"{name}:{word}"
        if not word.startswith("-"):
            script = word.rsplit("/", 1)[-1][:_SCRIPT_CHARS]
            task = argv[index + 1 : index + 2] if script in _TASK_SCRIPTS else ()
            return ":".join((name, script, *task))
    return name
