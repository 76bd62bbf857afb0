"""The 25 features of a command on which ContextServe's boosted layer decides.

Called by the predictors. Source: ContextServe's feature list; for its flags of a class (read,
search ...), the class of a program comes from the tables here.
"""

from __future__ import annotations

from agentkv.commands.analysis import CommandAnalysis
from agentkv.commands.program import Program, by_name

CLASSES = ("read", "search", "edit", "build", "test", "git", "network", "install")
_CLASS_OF_NAME = by_name(
    {
        "cat head tail less more ls stat wc file tree du df nl od xxd strings bat exa": "read",
        "grep egrep fgrep rg ag ack find fd locate which whereis git-grep": "search",
        "sed awk gawk perl tee touch mv cp rm mkdir ln chmod patch ed truncate": "edit",
        "make cmake ninja gcc cc clang g++ rustc tsc webpack vite esbuild mvn gradle gradlew bazel"
        " msbuild javac swiftc meson tox": "build",
        "pytest py.test jest vitest mocha ctest phpunit rspec nosetests unittest gotestsum nextest"
        " playwright cypress bats runtests.py": "test",
        "git gh hub glab": "git",
        "curl wget ssh scp rsync ping nc dig nslookup aria2c http": "network",
        "pip apt apt-get yum dnf brew conda mamba apk pacman pipx snap gem": "install",
    }
)
_CLASS_OF_SUBCOMMAND = by_name(
    {
        "build compile package bundle assemble vet lint check clippy fmt": "build",
        "test tests pytest unittest nose bench e2e": "test",
        "install add ci sync update upgrade restore download get i": "install",
        "clone fetch pull push": "network",
    }
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
