"""The programs that a bash text runs, their keys, and the shape of the text around them."""

import math
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.commands import CommandAnalysis, analyze_command, command_key
from agentkv.commands.analysis import MAX_READ_CHARS, SHOWN_SUBCOMMANDS
from agentkv.commands.programs import duration_s

KEYS = r"""
git status -> git:status
git -C /repo --no-pager log --oneline -> git:log
pip install -U torch -> pip:install
python -m pytest -q -> python:-m:pytest
python3.11 -m pip install x -> python:-m:pip
python -c 'print(1)' -> python:-c
python manage.py migrate -> python:manage.py:migrate
make -j4 all -> make:all
grep test src -> grep
bin/test sympy/core -> ./test
./node_modules/.bin/jest src -> jest:src
cd /testbed && python -m pytest -q -> python:-m:pytest
cd /testbed -> cd
A=1 B='x y' make -> make
env A=1 python x.py -> python:x.py
env -> env
sudo -u bob -E apt-get install x -> apt-get:install
timeout -k 5 1m cargo test -> cargo:test
uv run --with x pytest -x -> pytest
npx tsc --noEmit -> tsc
find . -name '*.py' | xargs -n1 grep foo -> find grep
bash -lc 'cd x && pip install y; git status' -> pip:install git:status
eval make test -> make:test
command -v make -> command:make
flock /tmp/lock -c 'make all' -> make:all
su -c 'make all' user -> make:all
runuser -l bob -c 'make all' -> make:all
script -qc 'make all' /dev/null -> make:all
strace -f -o log make -> make
systemd-run --user -p CPUQuota=50% make all -> make:all
mise x node@20 -- npm test -> npm:test
direnv exec . make -> make
conda run --live-stream -n e pytest -> pytest
uv --project x run pytest -> pytest
uv tool run ruff check -> ruff:check
pnpm dlx jest -> jest
npx -c 'jest --ci' -> jest
git bisect run make test -> make:test
bash -eu -o pipefail -c 'make' -- arg -> make
bash -co pipefail 'make' -> make
bash -o pipefail run.sh -> bash:run.sh
python -W ignore -m pytest -> python:-m:pytest
python -X dev -W error::UserWarning -m pytest -> python:-m:pytest
python -mpytest -q -> python:-m:pytest
python -We x.py -> python:x.py
python -uc 'print(1)' -> python:-c
perl -MData::Dumper -ne 'print' f -> perl:-e
ruby -Ilib -I test x.rb -> ruby:x.rb
npm -w app run test -> npm:run:test
mvn -T 4 install -> mvn:install
make -j 8 V=1 test -> make:test
cargo +nightly test -> cargo:test
docker compose -f x.yml up -d -> docker:compose:up
./gradlew -x test :app:assembleDebug -> gradlew:app:assembleDebug
cmake --build build -j8 -> cmake:--build
node --test x.test.js -> node:--test
sudo dpkg --force-all -i x.deb -> dpkg:-i
find . -execdir go test {} + -print -> find go:test
find . -exec -> find
fd -e py -x pytest -> fd pytest
ssh -p 22 -o A=b user@host 'cd x && make' -> ssh make
ssh -N -L 80:localhost:80 host -> ssh
docker exec -it -w /x c bash -lc 'make' -> docker:exec make
docker run --rm -v $PWD:/x -e A=1 image make -> docker:run make
docker run -d image make -> docker:run
docker compose -f x.yml exec -T web pytest -> docker:compose:exec pytest
f() { make; }; ls -> ls
a; b || c -> a b c
(cd x; make) && ls -> make ls
echo $(git rev-parse HEAD) -> git:rev-parse echo
X=$(ls | wc -l) -> ls wc
diff <(sort a) <(uniq b) -> sort uniq diff
for f in *.py; do python $f; done -> python:$f
while read x; do curl $x; done < urls -> read curl
if [ -f x ]; then cat x; else make; fi -> test cat make
powershell -NoLogo -Command "cargo test" -> cargo:test
pwsh -nop -c 'go build; go vet' -> go:build go:vet
pwsh -c 'Start-Sleep -Seconds 9' -> sleep
cmd.exe /S /C call mvnw.cmd verify -> mvnw:verify
C:\py\python.exe -m pip list -> python:-m:pip
py -3.11 -m venv x -> python:-m:venv
& 'C:\Program Files\nodejs\npm.cmd' ci; & $env:X\y.exe -> npm:ci y
.\env\Scripts\python -m tox -> python:-m:tox
"D:\a b\git.EXE" push; .\gradlew.bat check; test.bat x -> git:push gradlew:check test.bat:x
P=.venv/bin/python; $P -m mypy src -> python:-m:mypy
${CC:-gcc} -c x.c; $PYTHON x.py -> gcc python:x.py
[[ -f a && -f b ]] && make -> test make
"""
MORE = [
    ("find . -name x -exec pytest {} \\;", "find pytest"),
    ("find . -exec sh -c 'make -C $1' _ {} \\;", "find make"),
    ("# only a comment", ""),
    ("", ""),
    ("   \n\t", ""),
    ("A=1", ""),
    ("python - <<'EOF'\nimport os\nos.system('pip install x')\nEOF", "python:-"),
    ("cat <<EOF | wc -l\nabc\nEOF\nls", "cat wc ls"),
    ("cat <<'END-1'\nmake\nEND-1\nls", "cat ls"),
    ("cat <<EOF &\nabc\nEOF\nls", "cat ls"),
    ("cat > a.py <<'EOF'\nprint(1)\nEOF\npython a.py", "cat python:a.py"),
    ("bash <<'E'\nmake -j8\nE", "make"),
    ("cd /x && sh -s <<E && ls\nmake test\nE", "make:test ls"),
    ("sudo bash -e <<EOF 2>&1\nmake\npip install x\nEOF", "make pip:install"),
    ("ssh host <<EOF\nmake\nEOF", "ssh make"),
    ("bash run.sh <<EOF\nmake\nEOF", "bash:run.sh"),
    ("cat > x.sh <<EOF\nmake\nEOF", "cat"),
    ('git commit -m "$(cat <<EOF\nFix make\nEOF\n)"', "cat git:commit"),
]


@pytest.mark.parametrize(
    ("text", "keys"),
    [*(row.rpartition(" -> ")[::2] for row in KEYS.strip().splitlines()), *MORE],
)
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
    "rounds of nested loops multiply; `break` makes them unknown, as what `find` finds": (
        lambda command: [program.rounds for program in command.programs],
        [
            *(("make", [1]), ("for i in 1 2 3; do make; done; ls", [3, 1])),
            ("for i in 1 2 3; do for j in {1..4}; do make; done; done", [12]),
            ("for i in $(seq 2 4); do make; done", [1, 3]),
            ("for i in 1 2 3; do make && break; done", [None, None]),
            ("for f in *.py; do make; done", [None]),
            ("while ls x; do make; done", [1, None]),
            ("find . -exec make \\;", [1, None]),
            ("while true; do ls; done", [1, math.inf]),
            ("until false; do ls; done", [1, math.inf]),
        ],
    ),
    "what an `&` sends away is not awaited, with all of its list": (
        awaited,
        [
            *(("make &", []), ("make & ls", ["ls"]), ("make && ls & pwd", ["pwd"])),
            *(("(make; ls) & pwd", ["pwd"]), ("ls; make & pwd", ["ls", "pwd"])),
        ],
    ),
    "the code behind `-c`, or in a here-document, is kept": (
        lambda command: command.programs[0].code,
        [
            *(("python -c 'a(); b'", "a(); b"), ("python -W ignore -uc'a()' x", "a()")),
            *(("python -m pytest -c x", ""), ("python - <<E\na()\nE", "a()\n")),
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
    """Limits, rounds, input, code and shape follow from the text, by each of FACTS."""
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
@settings(max_examples=300, deadline=None)
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
