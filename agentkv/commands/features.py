"""The 25 features of a command on which ContextServe's boosted layer decides.

Called by the predictors. Source: ContextServe's feature list; for its flags of a class (read,
search ...), the class of a program comes from the tables here.
"""

from __future__ import annotations

from agentkv.commands.analysis import CommandAnalysis
from agentkv.commands.program import TABLES, Program

CLASSES = ("read", "search", "edit", "build", "test", "git", "network", "install")
_CLASS_OF_NAME, _CLASS_OF_SUBCOMMAND = (
    {name: kind for kind, names in TABLES[table].items() for name in names.split()}
    for table in ("class_of_name", "class_of_word")
)


def program_classes(program: Program) -> set[str]:
    """The classes of CLASSES that a program belongs to: none, one or several."""
    found = set()
    if program.name in _CLASS_OF_NAME:
        found.add(_CLASS_OF_NAME[program.name])
    for part in program.key.split(":")[1:]:
        if part in _CLASS_OF_SUBCOMMAND:
            found.add(_CLASS_OF_SUBCOMMAND[part])
    return found


def command_features(command: CommandAnalysis) -> list[float]:
    """The features of a command as the trees number them; flags are 0 or 1."""
    programs = command.programs
    words = [word for program in programs for word in program.argv]
    flags = "".join(word for word in words if word[:1] == "-" and word[1:2] != "-")
    classes = {kind for program in programs for kind in program_classes(program)}
    pythons = [program for program in programs if program.name == "python"]
    is_python_test = any("test" in word for program in pythons for word in program.argv[1:])
    return [
        float(len(words) - len(programs)),
        float(len(command.text)),
        float(len(programs)),
        float(command.num_pipes),
        float(command.num_pipes > 0),
        float(command.has_redirect),
        float(command.has_semicolon),
        float(command.has_and),
        float(command.has_loop),
        float(command.has_subshell),
        float("r" in flags or "R" in flags),
        float("v" in flags),
        float("f" in flags),
        *(float(name in classes) for name in CLASSES),
        float(any(program.key == "python:-c" for program in pythons)),
        float(any(program.key.startswith("python:-m:") for program in pythons)),
        float(is_python_test),
        float(any(word.endswith(".py") for word in words)),
    ]
