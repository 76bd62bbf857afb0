"""What of a bash text runs: programs, keys, prefixes, and the shape around them."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.commands import MAX_ANALYZED_BYTES, analyze_command

HEREDOC = "cat > a.py <<'EOF'\n{body}\nEOF\npython a.py"

KEYS = [
    # a program and what tells its runs apart
    ("ls -la", ["ls"]),
    ("git status", ["git:status"]),
    ("git -C /repo --no-pager log --oneline", ["git:log"]),
    ("git commit -m 'a message; rm -rf x'", ["git:commit"]),
    ("pip install -U torch", ["pip:install"]),
    ("python -m pytest -q", ["python:-m:pytest"]),
    ("python3.11 -m pip install x", ["python:-m:pip"]),
    ("/usr/bin/python3 scripts/train.py --lr 1", ["python:train.py"]),
    ("python -c 'print(1)'", ["python:-c"]),
    ("python manage.py migrate", ["python:manage.py:migrate"]),
    ("npm run test -- --watch", ["npm:run:test"]),
    ("docker compose up -d", ["docker:compose:up"]),
    ("make -j4 all", ["make:all"]),
    ("grep test src", ["grep"]),
    ("bin/test sympy/core", ["./test"]),
    ("./node_modules/.bin/jest src", ["jest:src"]),
    ("frobnicate --all", ["frobnicate"]),
    # what stands before a program
    ("cd /testbed && python -m pytest -q", ["python:-m:pytest"]),
    ("cd /testbed", ["cd"]),
    ("A=1 B='x y' make", ["make"]),
    ("env A=1 python x.py", ["python:x.py"]),
    ("env", ["env"]),
    ("time make", ["make"]),
    ("sudo -u bob -E apt-get install x", ["apt-get:install"]),
    ("nohup nice -n 5 make test", ["make:test"]),
    ("timeout -k 5 1m cargo test", ["cargo:test"]),
    ("uv run --with x pytest -x", ["pytest"]),
    ("poetry run python -m mypy", ["python:-m:mypy"]),
    ("npx tsc --noEmit", ["tsc"]),
    ("find . -name '*.py' | xargs -n1 grep foo", ["find", "grep"]),
    ("bash -lc 'cd x && pip install y; git status'", ["pip:install", "git:status"]),
    ("sh -c \"bash -c 'ls'\"", ["ls"]),
    ("eval make test", ["make:test"]),
    ("bash scripts/run.sh", ["bash:run.sh"]),
    # several programs
    ("make && make install", ["make", "make:install"]),
    ("a; b || c", ["a", "b", "c"]),
    ("(cd x; make) && ls", ["make", "ls"]),
    ("{ ls; pwd; }", ["ls", "pwd"]),
    ("ls | sort | head -3", ["ls", "sort", "head"]),
    ("echo $(git rev-parse HEAD)", ["git:rev-parse", "echo"]),
    ("X=$(ls | wc -l)", ["ls", "wc"]),
    ("diff <(sort a) <(sort b)", ["sort", "sort", "diff"]),
    ("for f in *.py; do python $f; done", ["python:$f"]),
    ("while read x; do curl $x; done < urls", ["read", "curl"]),
    ("if [ -f x ]; then cat x; else make; fi", ["test", "cat", "make"]),
    ("[[ -f x ]] && export A=b", ["test", "export"]),
    ("# only a comment", []),
    ("", []),
    ("   \n\t", []),
    ("A=1", []),
    # here-documents
    ("python - <<'EOF'\nimport os\nos.system('pip install x')\nEOF", ["python:-"]),
    ("cat <<EOF | wc -l\nabc\nEOF\nls", ["cat", "wc", "ls"]),
    ("cat <<'END-1'\nmake\nEND-1\nls", ["cat", "ls"]),
    # neither a here-string nor a shift opens one, however long what follows
    (f"grep x <<< foo\n# {'c' * 500}\npytest -q", ["grep", "pytest"]),
    (f"x=$((1 << n))\n# {'c' * 500}\npytest -q", ["pytest"]),
    (HEREDOC.format(body="print(1)"), ["cat", "python:a.py"]),
    (HEREDOC.format(body="x = 1\n" * 5000), ["cat", "python:a.py"]),
    ('git commit -m "$(cat <<EOF\nFix make\nEOF\n)"', ["cat", "git:commit"]),
]


@pytest.mark.parametrize(("text", "keys"), KEYS, ids=[text[:40] for text, _ in KEYS])
def test_text_gives_its_programs(text: str, keys: list[str]) -> None:
    """Prefixes, quotes, pipes, sequences, subshells and here-documents are seen through."""
    assert [program.key for program in analyze_command(text).programs] == keys


def test_argv_is_what_the_shell_would_pass() -> None:
    """Quotes go, words in quotes stay whole, and expansions are left as written."""
    (program,) = analyze_command("""python x.py "a b" 'c d' e\\ f $HOME --g="h i" """).programs
    assert program.argv == ("python", "x.py", "a b", "c d", "e f", "$HOME", "--g=h i")


@pytest.mark.parametrize(
    ("text", "timeout_s"),
    [
        ("timeout 60 make", 60.0),
        ("timeout 1.5m make", 90.0),
        ("timeout -s KILL 2h make", 7200.0),
        ("timeout 5 bash -c 'make'", 5.0),
        ("timeout 100 timeout 30 make", 30.0),
        ("make", None),
    ],
)
def test_timeout_before_a_program_is_its_limit(text: str, timeout_s: float | None) -> None:
    """The tightest limit counts, in seconds, through `bash -c` too."""
    assert analyze_command(text).programs[0].timeout_s == timeout_s


def test_background_pipe_and_loop_are_marked() -> None:
    """Each program knows whether it is waited for, reads a pipe, or runs more than once."""
    server, client = analyze_command("python server.py & curl localhost").programs
    assert server.is_background
    assert not client.is_background
    first, second = analyze_command("make | tail -5").programs
    assert (first.is_piped, second.is_piped) == (False, True)
    (looped,) = analyze_command("for i in 1 2 3; do make; done").programs
    assert looped.is_in_loop


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("for i in 1 2 3; do make; done", 3),
        ("for i in {1..50}; do make; done", 50),
        ("for f in *.py; do make; done", None),
        ("for i in $(seq 9); do make; done", None),
        ("while true; do make; done", None),
        ("make", None),
    ],
)
def test_rounds_of_a_loop_are_known_where_the_text_says_them(text: str, count: int | None) -> None:
    """Words and brace ranges are counted; what an expansion gives is not guessed."""
    assert analyze_command(text).loop_count == count


def test_shape_around_the_programs_is_counted() -> None:
    """Pipes, sequences, redirects, loops and subshells of the whole text."""
    command = analyze_command("a | b | c > out; (d && e) || f")
    assert (command.num_pipes, command.num_sequences) == (2, 3)
    assert command.has_redirect
    assert command.has_and
    assert command.has_semicolon
    assert command.has_subshell
    assert not command.has_loop


@pytest.mark.parametrize(
    "text", ["\udcff\udcfe ls", "ls \x00 -l", "é ü 漢字", "'", '"$(', "<<", ")("]
)
def test_text_that_is_not_bash_gives_what_can_be_read(text: str) -> None:
    """Lone surrogates (bytes that were not UTF-8), NULs and open quotes raise nothing."""
    analyze_command(text)


@given(st.text(alphabet=st.sampled_from("ab $(){}[]<>|&;'\"`\\\n#=!-/*~01"), max_size=120))
@settings(max_examples=300, deadline=None)
def test_any_shell_like_text_is_read(text: str) -> None:
    """Never raises, and every program has a name and a key that begins with it."""
    for program in analyze_command(text).programs:
        assert program.key.startswith(program.name)
        assert program.argv[0] == program.name


ATOMS = [
    "<<<a `",
    "2>&1 `",
    "a|",
    "a=(",
    "$(",
    "${",
    "(",
    "a;",
    "<<A\n",
    "bash -c '",
    "if ",
    "'",
    "{a,",
]


@pytest.mark.parametrize("atom", ATOMS)
def test_hostile_text_takes_bounded_time(atom: str) -> None:
    """A megabyte of anything is cut, and a tangle given up: measured at most 25 ms, bound 1 s."""
    text = atom * (1_000_000 // len(atom)) + str(random.random())
    began_s = time.perf_counter()
    command = analyze_command(text)
    assert time.perf_counter() - began_s < 1.0
    assert len(command.text) <= MAX_ANALYZED_BYTES
