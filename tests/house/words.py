"""Finds phrases that readers stumble over, in docstrings, comments, messages and pages.

`python -m tests.house.words [PATH ...]` lists them, with what to write instead, and exits with 1
if there are any.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = ("evals/swebench/suite/", "tests/house/", "tests/golden/expected/", "examples/project/")
"""Sources that are data, and the list of phrases itself."""
MIN_MESSAGE_WORDS = 4

PHRASES = {
    r"\banew\b": "again, or what is repeated",
    r"\b(what|that) (is|are) no\b": "name the thing: unless it is ...",
    r"\b[Ss]o (many|much|long)\b(?! (as|that)\b)": "a number, or the parameter's name",
    r"\b([Ww]ho|[Ww]hat|[Ww]hich)(so)?ever\b": "any, each, or the thing's name",
    r"\b(is|are|was|were|be|been|being|gets?) told\b": "is reported, is notified",
    r"\bcomes? to\b(?! (an end|rest|life|the same))": "results in",
    r"\b(is|are) to be\b": "must be",
    r"\b(is|are) there[.,;:]": "is resident, exists, has finished",
    r"\bbeside\b": "in addition to, next to",
    r"(^|[.;:(] )Who [a-z]+(?=[^?]*$)": "a noun: a job that waits",
    r"\b(for|by|of|to|from|with) who\b": "for readers who, for users that",
}
"""Phrase -> what to write instead. From the plan of the house, section 4."""


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) for each piece of prose in a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return markdown_prose(source)
    return python_prose(source, is_test=path.relative_to(ROOT).parts[0] == "tests")


def python_prose(source: str, *, is_test: bool) -> Iterator[tuple[int, str]]:
    """Docstrings, comments and, where strings are not a test's data, messages."""
    yield from _comments(source)
    tree = ast.parse(source)
    docstrings = {id(node) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        is_message = not is_test and len(node.value.split()) >= MIN_MESSAGE_WORDS
        if id(node) in docstrings or is_message:
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, line


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that stand as statements: docstrings, also those of constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def markdown_prose(source: str) -> Iterator[tuple[int, str]]:
    """Lines of Markdown outside code."""
    is_code = False
    for number, line in enumerate(source.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, re.sub(r"`[^`]*`", "`code`", line)


def files() -> list[Path]:
    """Everything that people read and git knows or could know."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    paths = [ROOT / name for name in listed if not name.startswith(LEFT_OUT)]
    return sorted(path for path in paths if path.is_file())


def offenders(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """(file, a line about the phrase) for each phrase found."""
    found = []
    for path in paths:
        name = str(path.relative_to(ROOT))
        for number, seen, better in phrases_in(prose_of(path)):
            found.append((name, f"{name}:{number}: {seen!r} (better: {better})"))
    return found


def phrases_in(prose: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """(line, phrase, what is better) for each phrase on the list."""
    for number, text in prose:
        for phrase, better in PHRASES.items():
            if match := re.search(phrase, text):
                yield number, match.group().strip(), better


def main(arguments: Sequence[str]) -> int:
    """Print the offenders below the paths, then their number by folder; 1 if there are any."""
    below = tuple(str(Path(argument)) for argument in arguments)
    names = [path for path in files() if str(path.relative_to(ROOT)).startswith(below or ("",))]
    found = offenders(names)
    print("\n".join(line for _, line in found))
    folders = Counter("/".join(name.split("/")[:3][: name.count("/")]) for name, _ in found)
    print("\n".join(f"{number:5} {folder or '.'}" for folder, number in folders.most_common()))
    print(f"{len(found)} phrases to reword")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
