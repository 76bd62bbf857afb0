"""ContextServe's lists of fast and slow programs, one command a row."""

import pytest

from agentkv.commands import analyze_command
from agentkv.durations.rules import FAST_PROGRAMS, RulesEstimator

FAST = [
    *(
        f"{name} x"
        for name in sorted(FAST_PROGRAMS - {"cd", "type", "env", "export", "set", "unset"})
    ),
    "cd /testbed",
    "env",
    "export A=1",
    "unset A",
    "/bin/ls -la",
    "git status",
    "git -C repo log --oneline -5",
    "git diff HEAD~1",
    "git show abc:x.py",
    "git branch -a",
    "git rev-parse HEAD",
    "git remote -v",
    "python -c 'print(1)'",
    "python3.11 -c 'print(1)'",
    "find . -maxdepth 1 -name '*.py'",
    "find . -maxdepth 2",
    "cd /testbed && ls && cat setup.cfg | head -5",
    "A=1 ls",
]
SLOW = [
    "make",
    "make -j8 test",
    "cmake ..",
    "cargo build --release",
    "go build ./...",
    "mvn -q package",
    "gradle build",
    "docker build .",
    "docker pull ubuntu",
    "apt install jq",
    "sudo apt-get -y install jq",
    "pip install x",
    "python -m pip install -e .",
    "python -W ignore -mpytest -q",
    "find . -maxdepth 1 -exec make \\;",
    "bash <<E\nmake\nE",
    "make > log & wait",
    "npm install",
    "yarn install",
    "conda install numpy",
    "pytest",
    "pytest -q tests",
    "pytest -rx tests",
    "pytest -k x",
    "cd /testbed && python -m pytest -q",
    "timeout 60 pytest",
    "bash -lc 'pytest -q'",
    "python train.py --epochs 3",
    "python eval.py",
    "python tools/benchmark.py",
    "python setup.py build",
    "git clone https://example.org/x.git",
    "wget https://example.org/x",
    "curl -o x https://example.org/x",
    "curl -sSLO https://example.org/x",
    "curl --output x https://example.org/x",
    "ls && make",
    "frobnicate | tee log; make",
]
UNCERTAIN = [
    "frobnicate",
    "git push",
    "git commit -m 'make it so'",
    "cargo test",
    "docker run x",
    "pip list",
    "pytest -x",
    "pytest -xvs tests",
    "pytest --exitfirst",
    "python -m pytest --collect-only",
    "python script.py",
    "python -m train",
    "find . -name x",
    "find . -maxdepth 3",
    "curl https://example.org",
    "curl -XPOST https://example.org",
    "curl -Ho: https://example.org",
    "ls && frobnicate",
    "grep -r make .",
    "echo $(frobnicate)",
    "",
    "# nothing",
]


@pytest.mark.parametrize(
    ("command", "speed"),
    [
        *((command, "fast") for command in FAST),
        *((command, "slow") for command in SLOW),
        *((command, "uncertain") for command in UNCERTAIN),
    ],
)
def test_verdict_follows_the_lists(command: str, speed: str) -> None:
    """All fast is fast, one slow is slow, anything else is uncertain."""
    assert RulesEstimator().predict(analyze_command(command)).speed == speed


@pytest.mark.parametrize(("command", "ttl_s"), [("ls", 3.0), ("make", 0.0), ("frobnicate", 2.0)])
def test_ttl_follows_the_verdict(command: str, ttl_s: float) -> None:
    """Fast is pinned for 3 s, slow frees at once, uncertain gets Continuum's TTL at cold start."""
    assert RulesEstimator().predict(analyze_command(command)).ttl_s == ttl_s


def test_background_does_not_count() -> None:
    """A slow program in the background holds up nobody."""
    assert RulesEstimator().predict(analyze_command("make > log & ls")).speed == "fast"


@pytest.mark.parametrize(("command", "seconds", "p_over"), [("ls", 1.0, 0.15), ("make", 5.0, 0.85)])
def test_distribution_is_as_sure_as_a_verdict(command: str, seconds: float, p_over: float) -> None:
    """The distribution of a listed program is as sure as the next layer has to be."""
    prediction = RulesEstimator().predict(analyze_command(command))
    assert prediction.p_over(seconds) == pytest.approx(p_over)


def test_explanation_names_what_decided() -> None:
    """The slow program is named, not the fast one before it."""
    prediction = RulesEstimator().predict(analyze_command("ls && pip install x"))
    assert prediction.explanation == "The list of slow programs has pip:install."


def test_state_of_another_kind_does_not_fit() -> None:
    """The rules learn nothing, so only an empty state is theirs."""
    RulesEstimator().restore(RulesEstimator().state())
    with pytest.raises(ValueError, match="learn nothing"):
        RulesEstimator().restore({"all": []})
