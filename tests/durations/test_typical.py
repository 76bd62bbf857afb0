"""Waits and modes of single programs, read off their words."""

from collections.abc import Callable

import pytest

from agentkv.commands import Program, analyze_command
from agentkv.durations.typical import mode_of, ping_s, runs_until_stopped, sleep_s, waits_for_input

UNTIL_STOPPED = [
    *("tail -f log", "tail -100f log", "tail -n0 -F a", "tail --follow=name log"),
    *("journalctl -fu x", "dmesg -wH", "docker logs -f c", "kubectl logs -f pod"),
    *("kubectl get pods -w", "nc -lvnp 80", "ssh -fNL 1:b:2 host", "php -S localhost:80"),
    *("watch -n 5 ls", "top", "htop", "docker compose up", "docker-compose up --build"),
    *("jest --watch", "npm test -- --watchAll", "gh pr checks --watch", "tsc -w"),
    *("docker run -p 8080:80 web", "docker run --rm docker.io/library/redis:7"),
]
ENDING = [
    *("tail -5 log", "tail log", "git log --follow x", "docker compose up -d", "tail -n 5 f"),
    *("docker compose up --detach", "top -bn1", "jest", "grep -f x y", "nc -z host 80", "tsc"),
    *("docker run -dp 80:80 nginx", "docker run --rm tool --fast", "docker run -it nginx sh"),
    *("ssh host ls", "php -r 'x();'", "journalctl -u x", "jest --watch=false"),
]


FACTS: dict[str, tuple[Callable[[Program], object], list[tuple[str, object]]]] = {
    "a sleep takes an hour at most, None if an expansion or another program gives its length": (
        sleep_s,
        [
            *(("sleep 30", 30.0), ("sleep 1h 30m", 3600.0), ("sleep infinity", 3600.0)),
            *(("sleep 0", 0.01), ("sleep $((60*10))", 600.0), ("sleep $N", None)),
            *(("sleep 5 $N", None), ("sleep", None), ("echo 5 | xargs sleep", None)),
        ],
    ),
    "a ping takes a second or `-i` for each packet, a minute if nothing ends it": (
        lambda program: round(ping_s(program), 6),
        [
            *(("ping host", 60.0), ("ping -c 4 host", 3.1), ("ping -c4 -i 0.5 host", 1.6)),
            *(("ping -w 10 host", 10.0), ("ping -c $N host", 60.0)),
        ],
    ),
    "options alone or in clusters let a program run until it is stopped": (
        runs_until_stopped,
        [*((text, True) for text in UNTIL_STOPPED), *((text, False) for text in ENDING)],
    ),
    "`read` waits for input, and so do filters that have neither a file nor a pipe": (
        waits_for_input,
        [
            *(("read x", True), ("read -p 'go on? ' x", True), ("read x < f", False)),
            *(("read -r a b <<< x", False), ("echo y | read x", False), ("cat", True)),
            *(("cat -n > f", True), ("cat f", False), ("ls | cat", False)),
            *(("cat > f <<EOF\nx\nEOF", False), ("ls", False)),
        ],
    ),
    "an option or a subcommand gives the mode; an argument that looks alike does not": (
        lambda program: mode_of(program).strip(),
        [
            *(("pytest --help", "question"), ("pytest -h", "question")),
            *(("python -m pytest --version", "question"), ("python -V", "question")),
            *(("java -version", "question"), ("go version", "question")),
            *(("cargo help build", "question"), ("docker compose version", "question")),
            *(("npm run build -- --help", "question"), ("cargo run --help", "question")),
            *(("grep --help", "question"), ("helm install x --version 1.2", "")),
            *(("cargo install --version 0.3 x", ""), ("cargo run -- --help", "")),
            *(("go run . --help", ""), ("npm run version", ""), ("npm -v", "question")),
            *(("mvn -v", "question"), ("tox -v", ""), ("npm test -v", "")),
            *(("bash -n run.sh", "question"), ("bash run.sh -n", "")),
            *(("node --check x.js", "question"), ("php -l x.php", "question")),
            *(
                ("perl -wc x.pl", "question"),
                ("perl -c x.pl", "question"),
                ("perl -pe 's/c//' x", ""),
            ),
            *(
                ("ruby -c x.rb", "question"),
                ("python -c 'print(1)'", ""),
                ("grep -rn help src", ""),
            ),
            *(("grep -rn -- --help src", ""), ("ctest -V", ""), ("du -h", ""), ("pytest -v", "")),
            *(("tail -f log", "endless"), ("npm test -- --watch", "endless")),
            *(
                ("kubectl wait --for=delete pod/x", "waiting"),
                ("aws rds wait db-available", "waiting"),
            ),
            *(("oc rollout status deploy/x", "waiting"), ("helm install a b --wait", "waiting")),
            *(("kubectl get wait", ""), ("git status", ""), ("aws s3 ls", "")),
            *(("tail --help", "question"), ("redis-server --daemonize yes", "detached")),
            *(("redis-server --daemonize no", ""), ("mongod --fork --dbpath x", "detached")),
            *(("gunicorn app:app --daemon", "detached"), ("docker run -dit x", "detached")),
            *(("docker run -it x", ""), ("pytest --collect-only -q", "plan")),
            ("kubectl apply -f x --dry-run=client", "plan"),
            *(
                ("kubectl apply -f x --dry-run=none", ""),
                ("make -n all", "plan"),
                ("pytest -n 4", ""),
            ),
            ("make", ""),
        ],
    ),
}


@pytest.mark.parametrize(
    ("fact", "text", "expected"),
    [(fact, *case) for fact, (_, cases) in FACTS.items() for case in cases],
)
def test_a_program_is_read_off_its_words(fact: str, text: str, expected: object) -> None:
    """Waits, modes and missing input of a text's last program are read off, by each of FACTS."""
    read, _ = FACTS[fact]
    assert read(analyze_command(text).programs[-1]) == expected
