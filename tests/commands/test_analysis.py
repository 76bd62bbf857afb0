"""The programs that a bash text runs, their keys, and the shape of the text around them."""

import math
import random
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.commands import CommandAnalysis, analyze_command, command_key
from agentkv.commands.analysis import MAX_READ_CHARS, SHOWN_SUBCOMMANDS
from agentkv.commands.programs import duration_s

KEYS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text("utf-8"))["keys"]


@pytest.mark.parametrize(("text", "keys"), KEYS.items())
def test_text_gives_its_programs(text: str, keys: str) -> None:
    """A text gives its programs behind prefixes, quotes, pipes, subshells and here-documents, also
    one of PowerShell or cmd."""
    assert [program.key for program in analyze_command(text).programs] == keys.split()


def awaited(command: CommandAnalysis) -> list[str]:
    return [program.name for program in command.programs if not program.is_background]


FACTS: dict[str, tuple[Callable[[CommandAnalysis], object], list[tuple[str, object]]]] = {
    "the tightest `timeout` is the limit, through `bash -c`; 0 and infinity set none": (
        lambda command: command.programs[0].timeout_s,
        [
            *(("timeout 60 make", 60.0), ("timeout 1.5m make", 90.0), ("make", None)),
            *(("timeout -s KILL 2h make", 7200.0), ("timeout 5 bash -c 'make'", 5.0)),
            *(("timeout 100 timeout 30 make", 30.0), ("timeout 60 docker exec c make", 60.0)),
            *(("timeout 0 make", None), ("timeout infinity make", None), ("timeout $T make", None)),
        ],
    ),
    "what stands between `do` and `done` runs again and again": (
        lambda command: [program.key for program in command.programs if program.is_repeated],
        [
            *(("make", []), ("for i in 1 2 3; do make; done; ls", ["make"])),
            ("for i in 1 2; do for j in {1..4}; do make; done; pwd; done; ls", ["make", "pwd"]),
            *(("while ls x; do make; done", ["make"]), ("bash -c 'done; make'", [])),
            ("for i in 1 2; do bash -c 'make; done; ls'; done", ["make", "ls"]),
        ],
    ),
    "what an `&` sends away is not awaited, with all of its list": (
        awaited,
        [
            *(("make &", []), ("make & ls", ["ls"]), ("make && ls & pwd", ["pwd"])),
            *(("(make; ls) & pwd", ["pwd"]), ("ls; make & pwd", ["ls", "pwd"])),
        ],
    ),
    "in argv quotes are removed, quoted words stay whole, and expansions as written": (
        lambda command: command.programs[0].argv[1:],
        [
            ("""x "a b" 'c d' e\\ f $HOME --g="h i" """, ("a b", "c d", "e f", "$HOME", "--g=h i")),
        ],
    ),
    "separators, redirects, loops and subshells are noted over the whole text": (
        lambda command: " ".join(command.marks),
        [
            ("a | b > out; (d && e) || f", "| > ; ( && ) ||"),
            *(("ls", ""), ("for i in 1; do ls $(a); done", "; do ( ;")),
        ],
    ),
}


@pytest.mark.parametrize(
    ("fact", "text", "expected"),
    [(fact, *case) for fact, (_, cases) in FACTS.items() for case in cases],
    ids=[text[:40] for _, cases in FACTS.values() for text, _ in cases],
)
def test_what_surrounds_a_program_is_read(fact: str, text: str, expected: object) -> None:
    """Limits, loops, input and shape follow from the text, by each of FACTS."""
    read, _ = FACTS[fact]
    assert read(analyze_command(text)) == expected


@pytest.mark.parametrize(
    ("word", "seconds"),
    [
        *(("60", 60), ("1.5m", 90), (".5", 0.5), ("1d", 86_400), ("1e9", 1e9), ("inf", math.inf)),
        *(("$((60*10))", 600), ("${N:-30}", 30), ("${D:-5}m", 300), ("$((90))", 90)),
        *((word, None) for word in ("", "abc", "-1", "1x", "nan", "$N", "$(cat f)", "$((N*2))")),
    ],
)
def test_a_word_gives_seconds(word: str, seconds: float | None) -> None:
    """Units, products and defaults give seconds, what bash would refuse gives None."""
    assert duration_s(word) == seconds


@given(
    st.text(alphabet=st.sampled_from("ab $(){}[]<>|&;'\"`\\\n#=!-/*~01\0\udcff漢"), max_size=120)
)
@settings(max_examples=300)
def test_any_shell_like_text_is_read(text: str) -> None:
    """Any text can be read, also with bytes that were not UTF-8, and each program's key begins with
    its name."""
    for program in analyze_command(text).programs:
        assert program.key.startswith(program.name)
        assert program.argv[0] == program.name


ATOMS = [
    *("<<<a `", "2>&1 `", "a|", "a=(", "$(", "${", "(", "a;", "<<A\n", "bash -c '", "ssh h "),
    *("find -exec ", "docker exec c ", "f(){ f;f;};f;", "sleep 5 & wait;", "sleep $((1+"),
    *("bash <<E\n", "env -S ", "if ", "'", "{a,"),
]


@pytest.mark.parametrize("atom", ATOMS)
def test_adversarial_text_takes_bounded_time(atom: str) -> None:
    """A megabyte of any piece of bash is read within 50 ms of CPU; measured were at most 2."""
    text = atom * (1_000_000 // len(atom)) + str(random.random())
    began_s = time.thread_time()
    command = analyze_command(text)
    assert time.thread_time() - began_s < 0.05
    assert len(command.text) <= MAX_READ_CHARS


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("cd /testbed && python -m pytest -q tests/x.py | tail -3", "pytest"),
        ("ls -la && sudo -u bob pytest", "pytest"),
        ("git clone https://user:password@host/x", "git clone"),
        ("git -c user.password=x push", "git push"),
        ("npm run test -- --watch", "npm run test"),
        ("python3.11 -c 'print(1)'", "python -c"),
        ("/usr/bin/python3 secret.py", "python"),
        ("curl https://x/?k=1 | jq .", "curl"),
        ("read_file", "read_file"),
        ("", ""),
        ("TOKEN=abc", ""),
    ],
)
def test_a_command_has_a_key_that_can_be_shown(command: str, key: str) -> None:
    """It names the program that lasts, behind prefixes and pipes, and its subcommand or module."""
    assert command_key(command) == key


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "./{}", "/opt/{}.sh", "../{}/run", "https://u:{}@host/{}", "'/opt/'{}", '/o/"{}"'),
        *("TOKEN={} make {}", "env A={} B='{}' ./x", "mysql -p{} -u {}", "git {} {}", "$({})"),
        *("npm run {}", "make {}", "python {}.py", "python -m {}.{}", "python -c '{}'", "bash {}"),
        *("docker run -e K={} img {}", "ssh {}@host {}", "curl -H 'A: {}' {}", "cat <<< {}"),
        *("sh -c 'A={} /x/{}'", "uv run {}", "xargs {}", "kubectl -n {} {}", "aws {} {}"),
        *("cat > f <<E\n{}\nE", "for x in {}; do {}=1 ./$x; done", "{}() {{ ls; }}", "\\{}"),
    ],
)
@pytest.mark.parametrize(
    "secret", ["hunter2", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "sk-ant-0"]
)
def test_no_argument_is_in_the_key(text: str, secret: str) -> None:
    """Wherever a secret stands in a command, it is not in what the server keeps and shows."""
    assert secret not in command_key(text.format(secret, secret))


@given(st.text(max_size=300))
def test_the_key_of_any_text_is_short_and_of_known_words(text: str) -> None:
    """A key has a few words, of which all but the first are out of a list."""
    name, *rest = command_key(text).split(" ")
    assert len(name) <= 20
    assert len(rest) <= 3
    assert SHOWN_SUBCOMMANDS.issuperset(rest)
