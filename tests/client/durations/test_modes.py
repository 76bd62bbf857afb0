"""What a program does instead of its usual work."""

import pytest

from agentkv.commands import analyze_command
from agentkv.durations.modes import mode_of


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("pytest --help", "question"),
        ("pytest -h", "question"),
        ("python -m pytest --version", "question"),
        ("python -V", "question"),
        ("java -version", "question"),
        ("go version", "question"),
        ("cargo help build", "question"),
        ("docker compose version", "question"),
        ("npm run build -- --help", "question"),
        ("cargo run --help", "question"),
        ("grep --help", "question"),
        ("helm install x --version 1.2", ""),
        ("cargo install --version 0.3 x", ""),
        ("cargo run -- --help", ""),
        ("go run . --help", ""),
        ("npm run version", ""),
        ("npm -v", "question"),
        ("mvn -v", "question"),
        ("tox -v", ""),
        ("npm test -v", ""),
        ("bash -n run.sh", "question"),
        ("bash run.sh -n", ""),
        ("node --check x.js", "question"),
        ("php -l x.php", "question"),
        ("perl -wc x.pl", "question"),
        ("perl -c x.pl", "question"),
        ("perl -pe 's/c//' x", ""),
        ("ruby -c x.rb", "question"),
        ("python -c 'print(1)'", ""),
        ("grep -rn help src", ""),
        ("grep -rn -- --help src", ""),
        ("ctest -V", ""),
        ("du -h", ""),
        ("pytest -v", ""),
        ("tail -f log", "endless"),
        ("npm test -- --watch", "endless"),
        ("tail --help", "question"),
        ("redis-server --daemonize yes", "detached"),
        ("redis-server --daemonize no", ""),
        ("mongod --fork --dbpath x", "detached"),
        ("gunicorn app:app --daemon", "detached"),
        ("docker run -dit x", "detached"),
        ("docker run -it x", ""),
        ("pytest --collect-only -q", "plan"),
        ("kubectl apply -f x --dry-run=client", "plan"),
        ("kubectl apply -f x --dry-run=none", ""),
        ("make -n all", "plan"),
        ("pytest -n 4", ""),
        ("make", ""),
    ],
)
def test_a_mode_is_read_off_the_words(text: str, mode: str) -> None:
    """Where an option or a subcommand says it; an argument that looks alike says nothing."""
    program = analyze_command(text).programs[-1]
    assert mode_of(program).strip() == mode
