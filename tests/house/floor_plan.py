"""Rooms keep their budget and their privacy, and modules are worth their file.

A feature that needs more lines than ROOM_LINES gives its room says in the same commit what leaves.
`python -m tests.house.floor_plan` lists the offenders and exits with 1 if there are any.
"""

import ast
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("agentkv", "agents", "evals", "integrations")
INSTALLED_BELOW_AGENTKV = ("agents", "evals", "integrations")
MIN_LINES = 80
LONG_FUNCTION_LINES = 40
MAX_LONG_FUNCTIONS = 20

ROOM_LINES: dict[tuple[str, ...], int] = {
    ("agentkv",): 1_901,
    ("agentkv/client",): 1_551,
    ("agentkv/tool_calls",): 1_690,
    ("agentkv/durations", "agentkv/commands"): 1_851,
    ("agentkv/policies",): 2_033,
    ("agentkv/server",): 446,
    ("agents",): 88,
    ("integrations",): 1_144,
    ("integrations/vllm",): 939,
    ("integrations/vllm/front_end",): 818,
    ("integrations/vllm/retention",): 3_530,
    ("integrations/vllm/watch",): 2_373,
    ("integrations/vllm/api",): 1_501,
    ("integrations/vllm/engine",): 1_618,
    ("integrations/vllm/doctor",): 449,
    ("evals",): 6_020,
    ("evals/simulator",): 2_841,
    ("evals/traces",): 797,
    ("studies",): 3_121,
    ("tests",): 32_999,
}
"""Folders of a room -> lines of Python at most; folders with a line of their own count there."""
MAX_DOCS_WORDS = 26_955

TWICE_ON_PURPOSE: dict[str, str] = {
    "Job": "what a client's session enters, and what a policy is asked about: two APIs",
}
"""Class names that stand in two files, each with its reason."""

SMALL_ON_PURPOSE: dict[str, str] = {
    "integrations/lm15.py": "the one module that touches DSPy's own HTTP library",
    "integrations/vllm/api/balancer.py": "the seam to vLLM's choice of an engine",
    "integrations/vllm/introduction.py": "what a server says of itself at start",
}
"""Modules under 80 lines with one importer that keep their file, each with its reason."""


def source_files() -> list[Path]:
    """Every module of the package, found in its real folder and not through a link."""
    return sorted(
        path
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if not any((ROOT / parent).is_symlink() for parent in path.relative_to(ROOT).parents)
        and "repositories" not in path.parts
    )


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in INSTALLED_BELOW_AGENTKV:
        parts = ("agentkv", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, known: frozenset[str]) -> Iterator[tuple[str, str | None]]:
    """(module, name) for everything that a file imports from the package; name None: all of it."""
    package = name_of(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield (full, None) if full in known else (module, alias.name)


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def _python_below(*folders: str) -> list[Path]:
    """Python of these top-level folders, data left out."""
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "repositories" not in path.parts
    )


def _room_of(path: Path) -> tuple[str, ...] | None:
    """The room whose folder, of all that contain the file, is the innermost."""
    above = [parent.as_posix() for parent in path.relative_to(ROOT).parents]
    homes = [(above.index(name), room) for room in ROOM_LINES for name in room if name in above]
    return min(homes)[1] if homes else None


def heavy_rooms() -> list[str]:
    """Rooms or the docs beyond their budget."""
    lines: Counter[tuple[str, ...] | None] = Counter()
    for path in [*source_files(), *_python_below("studies", "tests")]:
        lines[_room_of(path)] += _lines(path)
    sizes = [(" + ".join(room), lines[room], most, "lines") for room, most in ROOM_LINES.items()]
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in ROOT.glob("docs/**/*.md"))
    sizes += [("docs", words, MAX_DOCS_WORDS, "words")]
    return [
        f"{name}: {size} {unit}, at most {most}" for name, size, most, unit in sizes if size > most
    ]


def long_functions() -> list[str]:
    """Functions of the wheel and of studies over 40 lines, if there are more than allowed."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}, {num_lines} lines"
        for path in [*source_files(), *_python_below("studies")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (num_lines := (node.end_lineno or node.lineno) - node.lineno + 1) > LONG_FUNCTION_LINES
    ]
    return found if len(found) > MAX_LONG_FUNCTIONS else []


def class_names_taken_twice() -> list[str]:
    """Class names that stand in two files of the wheel."""
    files: dict[str, set[str]] = defaultdict(set)
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].add(str(path.relative_to(ROOT)))
    return [
        f"{name}: {', '.join(sorted(paths))}"
        for name, paths in sorted(files.items())
        if len(paths) > 1 and name not in TWICE_ON_PURPOSE
    ]


def small_modules() -> list[str]:
    """Modules under 80 lines that only one other module imports."""
    files = source_files()
    known = frozenset(name_of(path) for path in files)
    importers: dict[str, set[str]] = defaultdict(set)
    for path in files:
        for module, _ in imports_of(path, known):
            importers[module].add(name_of(path))
    found = []
    for path in files:
        relative = str(path.relative_to(ROOT))
        num_lines = _lines(path)
        is_exempt = path.name in ("__init__.py", "__main__.py") or relative in SMALL_ON_PURPOSE
        users = importers[name_of(path)] - {name_of(path)}
        if num_lines < MIN_LINES and len(users) == 1 and not is_exempt:
            found.append(f"{relative}: {num_lines} lines, imported by {min(users)} alone")
    return found


def private_imports() -> list[str]:
    """Private modules or names that another room imports."""
    files = source_files()
    known = frozenset(name_of(path) for path in files)
    found = []
    for path in files:
        own = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
        for module, name in imports_of(path, known):
            if module.split(".")[0] != "agentkv":
                continue
            room, parts = module.split("."), [*module.split("."), *([name] if name else [])]
            private = next((i for i, part in enumerate(parts) if _is_private(part)), None)
            if private is None:
                continue
            home = ".".join(parts[:private])
            is_at_home = own == home or own.startswith(f"{home}.")
            if name is not None and private == len(room):
                is_at_home = own == module or own == module.rpartition(".")[0]
            if not is_at_home:
                found.append(f"{path.relative_to(ROOT)}: imports {'.'.join(parts)}")
    return found


def _is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


CHECKS = (heavy_rooms, long_functions, class_names_taken_twice, small_modules, private_imports)


def main() -> int:
    """Print the offenders by rule; 1 if there are any."""
    found = {check.__doc__ or "": check() for check in CHECKS}
    for rule, offenders in found.items():
        print("\n".join([f"{rule} ({len(offenders)})", *(f"  {line}" for line in offenders)]))
    return int(any(itertools.chain.from_iterable(found.values())))


if __name__ == "__main__":
    raise SystemExit(main())
