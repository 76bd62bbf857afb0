"""ContextServe's lists of fast and slow programs, one command a row."""

import json
import math

import pytest

from agentkv.commands import analyze_command
from agentkv.commands.features import FEATURES, command_features
from agentkv.durations.baselines import DurationCurve
from agentkv.durations.context_serve import (
    COLD_START,
    FAST_PROGRAMS,
    MAX_CONTEXTS,
    MAX_TOOLS,
    BayesEstimator,
    BoostedEstimator,
    ContextServeEstimator,
    Levels,
    RulesEstimator,
    TTLRule,
    main_program,
)
from agentkv.durations.trees import (
    MAX_DEPTH,
    NUM_TREES,
    Bound,
    Observation,
    TreeEnsemble,
    labelled,
    train_boosted,
)

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


def _observe(levels: Levels[DurationCurve], command: str, times: int = 1) -> None:
    for _ in range(times):
        for window in levels.to_observe(analyze_command(command)):
            window.add(1.0, censored=False)


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("cd /testbed && python -m pytest -q", "python:-m:pytest"),
        ("cat x | python train.py", "python:train.py"),
        ("ls && go test ./... | tail -5", "go:test"),
        ("git status", "git:status"),
        ("make docs & frobnicate", "frobnicate"),
        ("", None),
    ],
)
def test_main_program_is_what_decides(command: str, key: str | None) -> None:
    """The key of a command is that of the program that most likely takes the time."""
    program = main_program(analyze_command(command))
    assert (program and program.key) == key


@pytest.mark.parametrize(
    ("observed", "times", "key"),
    [
        ("go test ./a", COLD_START, "go:test"),
        ("go test ./a", COLD_START - 1, None),
        ("go vet", COLD_START, "go"),
        ("frobnicate", COLD_START, None),
        ("", COLD_START, None),
    ],
)
def test_best_level_is_the_most_specific_warm_one(
    observed: str, times: int, key: str | None
) -> None:
    """`go test` is judged by its own runs, else by those of go, else by all."""
    levels = Levels(DurationCurve)
    _observe(levels, observed, times)
    level = levels.best(analyze_command("go test ./b"))
    assert (level.key, level.is_warm) == (key, times >= COLD_START)


def test_keys_are_bounded() -> None:
    """However many programs run, the levels keep a fixed number of them, the latest."""
    levels = Levels(DurationCurve)
    for number in range(MAX_CONTEXTS + 10):
        _observe(levels, f"tool{number}")
    state = levels.state()
    assert len(state["contexts"]) == MAX_CONTEXTS
    assert len(state["tools"]) == MAX_TOOLS
    assert f"tool{MAX_CONTEXTS + 9}" in state["tools"]


def test_observed_key_is_kept() -> None:
    """A tool in use is not forgotten for all the others that come and go."""
    levels = Levels(DurationCurve)
    for number in range(3 * MAX_CONTEXTS):
        _observe(levels, f"tool{number}")
        _observe(levels, "go test")
    assert len(levels.best(analyze_command("go test")).window) > COLD_START


def test_restored_levels_are_the_same() -> None:
    """State goes through JSON and comes back."""
    levels, restored = Levels(DurationCurve), Levels(DurationCurve)
    _observe(levels, "go test ./a", 7)
    restored.restore(json.loads(json.dumps(levels.state())))
    assert restored.state() == levels.state()


@pytest.mark.parametrize(
    "state", [{}, {"contexts": [], "tools": {}, "all": []}, {"contexts": {"a": 1}}]
)
def test_foreign_state_is_refused(state: dict[str, object]) -> None:
    """State of another shape is an error."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        Levels(DurationCurve).restore(state)


def _bayes_observed(
    durations_s: list[float],
    *,
    censored: bool = False,
    seed: int = 0,
    ttl_rule: TTLRule = "quantile",
) -> BayesEstimator:
    estimator = BayesEstimator(seed=seed, ttl_rule=ttl_rule)
    for duration_s in durations_s:
        estimator.observe(analyze_command("frobnicate"), duration_s, censored=censored)
    return estimator


@pytest.mark.parametrize(
    ("durations_s", "speed"),
    [
        ([0.1] * 10, "fast"),
        ([30.0] * 10, "slow"),
        ([3.0] * 10, "uncertain"),
        ([0.1, 30.0] * 10, "uncertain"),
        ([0.1] * (COLD_START - 1), "uncertain"),
        ([30.0] * (COLD_START - 1), "uncertain"),
        ([0.0] * 10, "fast"),
        ([1e6] * 10, "slow"),
    ],
)
def test_verdict_follows_the_posterior(durations_s: list[float], speed: str) -> None:
    """Fast and slow need probability over 0.85 and five observations."""
    estimator = _bayes_observed(durations_s)
    assert estimator.predict(analyze_command("frobnicate")).speed == speed


def test_tool_cut_off_at_five_minutes_is_slow() -> None:
    """Ten time-outs at 300 s make a tool slow, and slower than ten runs of 300 s."""
    cut = _bayes_observed([300.0] * 10, censored=True).predict(analyze_command("frobnicate"))
    measured = _bayes_observed([300.0] * 10).predict(analyze_command("frobnicate"))
    assert cut.speed == "slow"
    assert cut.p50_s > measured.p50_s


@pytest.mark.parametrize(("rule", "share"), [("quantile", 0.9), ("upper", 0.95)])
def test_ttl_is_a_quantile(rule: TTLRule, share: float) -> None:
    """The TTL of a fast command is the quantile that the rule names."""
    prediction = _bayes_observed([0.1, 0.2] * 10, ttl_rule=rule).predict(
        analyze_command("frobnicate")
    )
    assert prediction.ttl_s == prediction.distribution.quantile_s(share)


def test_thompson_ttl_depends_on_the_seed_alone() -> None:
    """The draw is the same however often one asks, and another under another seed."""
    command = analyze_command("frobnicate")
    first, same, other = (
        _bayes_observed([0.1, 0.2] * 10, ttl_rule="thompson", seed=seed) for seed in (1, 1, 2)
    )
    ttl_s = first.predict(command).ttl_s
    assert first.predict(command).ttl_s == ttl_s == same.predict(command).ttl_s
    assert other.predict(command).ttl_s != ttl_s


def test_thompson_ttl_is_drawn_anew_after_an_observation() -> None:
    """Otherwise one unlucky draw would hold for good."""
    command = analyze_command("frobnicate")
    estimator = _bayes_observed([0.1] * 300, ttl_rule="thompson")
    before_s = estimator.predict(command).ttl_s
    estimator.observe(command, 0.1, censored=False)
    assert estimator.predict(command).ttl_s != before_s


def test_explanation_gives_the_numbers() -> None:
    """A person reads what was observed, how often, and what follows."""
    prediction = _bayes_observed([30.0] * 10).predict(analyze_command("frobnicate"))
    assert prediction.explanation == (
        "Posterior after 10 runs of `frobnicate`: half end within 22 s, 1% within 1 s, "
        "91% take over 5 s."
    )


def test_a_restored_posterior_predicts_the_same() -> None:
    """Saved and loaded, it says the same of every command, Thompson's draws included."""
    estimator = _bayes_observed([0.1, 0.3, 0.2] * 5, ttl_rule="thompson")
    restored = BayesEstimator(ttl_rule="thompson")
    restored.restore(json.loads(json.dumps(estimator.state())))
    for text in ("frobnicate", "frobnicate x | tail", "other", ""):
        command = analyze_command(text)
        assert restored.predict(command) == estimator.predict(command)


@pytest.mark.parametrize("num_observed", [None, "many", 1.5, float("inf")])
def test_a_foreign_posterior_is_refused(num_observed: object) -> None:
    """State of another shape is an error."""
    state = {**BayesEstimator().state(), "num_observed": num_observed}
    with pytest.raises(TypeError):
        BayesEstimator().restore(state)


OBSERVATIONS = [
    Observation(f"{program} x{number}", duration_s + number / 100)
    for number in range(40)
    for program, duration_s in (("go test", 20.0), ("cat", 0.1), ("grep -r", 0.5), ("git push", 3))
]


@pytest.mark.parametrize(
    ("p_slow", "speed"),
    [(0.01, "fast"), (0.19, "fast"), (0.21, "uncertain"), (0.79, "uncertain"), (0.81, "slow")],
)
def test_verdict_follows_the_probability(p_slow: float, speed: str) -> None:
    """Slow above 0.8, fast below 0.2."""
    trees = TreeEnsemble([math.log(p_slow / (1 - p_slow))])
    assert BoostedEstimator(trees).predict(analyze_command("x")).speed == speed


@pytest.mark.parametrize("p_slow", [0.05, 0.5, 0.95])
def test_distribution_holds_the_probability(p_slow: float) -> None:
    """The probability of more than 5 s is the one the trees give."""
    trees = TreeEnsemble([math.log(p_slow / (1 - p_slow))])
    prediction = BoostedEstimator(trees).predict(analyze_command("x"))
    assert prediction.p_over(5.0) == pytest.approx(p_slow)
    assert prediction.p50_s < prediction.p90_s


@pytest.mark.parametrize("log_odds", [-1e9, 1e9])
def test_extreme_scores_stay_in_range(log_odds: float) -> None:
    """However sure the trees are, the distribution is one."""
    prediction = BoostedEstimator(TreeEnsemble([log_odds])).predict(analyze_command("x"))
    assert 0 < prediction.p_over(5.0) < 1
    assert 0 < prediction.p90_s < 1e6


@pytest.mark.parametrize(
    ("duration_s", "bound", "labels"),
    [
        (6.0, "exact", [True]),
        (4.0, "exact", [False]),
        (6.0, "lower", [True]),
        (4.0, "lower", []),
        (6.0, "upper", []),
        (3.0, "upper", [False]),
    ],
)
def test_bounds_label_where_they_decide(
    duration_s: float, bound: Bound, labels: list[bool]
) -> None:
    """A bound on the wrong side of 5 s tells nothing and is left out."""
    observed = [Observation("x", duration_s, bound)]
    assert [is_slow for _, is_slow in labelled(observed)] == labels


def test_trained_trees_are_deterministic_and_small() -> None:
    """The same observations and seed give the same trees, within the size that is shipped."""
    pytest.importorskip("lightgbm")
    trees = train_boosted(OBSERVATIONS, seed=3)
    assert trees.to_list() == train_boosted(OBSERVATIONS, seed=3).to_list()
    assert len(trees) <= NUM_TREES
    assert max(map(_depth, trees.to_list())) <= MAX_DEPTH


def test_trained_trees_tell_slow_from_fast() -> None:
    """What was slow in training is slow, by its features: the arguments are new."""
    pytest.importorskip("lightgbm")
    estimator = BoostedEstimator(train_boosted(OBSERVATIONS))
    assert estimator.predict(analyze_command("go test y")).speed == "slow"
    assert estimator.predict(analyze_command("cat y")).speed == "fast"


def test_one_kind_of_commands_cannot_train() -> None:
    """Training on fast commands alone is an error that says so."""
    pytest.importorskip("lightgbm")
    with pytest.raises(ValueError, match="over and under 5 s"):
        train_boosted([Observation("ls", 0.1)] * 50)


def test_features_are_twenty_five() -> None:
    """ContextServe's layer sees 25 features."""
    assert len(FEATURES) == len(command_features(analyze_command("ls -la"))) == 25


def _depth(node: object) -> int:
    return 1 + max(_depth(node[2]), _depth(node[3])) if isinstance(node, list) else 0


def _trees(p_slow: float) -> TreeEnsemble:
    return TreeEnsemble([math.log(p_slow / (1 - p_slow))])


def _observed(
    command: str, durations_s: list[float], *, p_slow: float = 0.5
) -> ContextServeEstimator:
    estimator = ContextServeEstimator(_trees(p_slow))
    for duration_s in durations_s:
        estimator.observe(analyze_command(command), duration_s, censored=False)
    return estimator


@pytest.mark.parametrize(
    ("observed", "durations_s", "p_slow", "command", "source", "speed"),
    [
        # the lists win over whatever was observed
        ("ls", [60.0] * 10, 0.95, "ls", "rules", "fast"),
        ("pip install x", [0.1] * 10, 0.05, "pip install x", "rules", "slow"),
        # then the observed context, then the tool, also where they leave it open
        ("frobnicate", [30.0] * 10, 0.05, "frobnicate", "bayes", "slow"),
        ("go vet", [30.0] * 10, 0.05, "go test", "bayes", "slow"),
        ("go test", [3.0] * 10, 0.95, "go test", "bayes", "uncertain"),
        # then the trees, where they have a feature for the program
        ("go test", [3.0] * 4, 0.95, "go test", "boosted", "slow"),
        ("ls", [0.1] * 10, 0.05, "go test", "boosted", "fast"),
        # else nobody knows
        ("go test", [3.0] * 4, 0.5, "go test", "fallback", "uncertain"),
        ("ls", [0.1] * 10, 0.05, "frobnicate", "fallback", "uncertain"),
        ("ls", [0.1] * 10, 0.05, "", "fallback", "uncertain"),
    ],
)
def test_first_layer_that_knows_decides(
    observed: str,
    durations_s: list[float],
    p_slow: float,
    command: str,
    source: str,
    speed: str,
) -> None:
    """Rules, posterior of context or tool, trees, and else uncertain."""
    estimator = _observed(observed, durations_s, p_slow=p_slow)
    prediction = estimator.predict(analyze_command(command))
    assert (prediction.source, prediction.speed) == (source, speed)


def test_unknown_program_is_learned() -> None:
    """A made-up tool is uncertain at first and slow after ten slow runs."""
    command = analyze_command("frobnicate --all")
    assert ContextServeEstimator(_trees(0.5)).predict(command).speed == "uncertain"
    assert _observed("frobnicate --all", [20.0] * 10).predict(command).speed == "slow"


def test_fallback_says_what_is_missing() -> None:
    """The sentence names the program that no layer knows."""
    prediction = ContextServeEstimator(_trees(0.5)).predict(analyze_command("frobnicate"))
    assert prediction.explanation.startswith("No layer is sure of `frobnicate`")


def test_restored_estimator_predicts_the_same() -> None:
    """Saved and loaded, it says the same."""
    estimator, restored = _observed("frobnicate", [12.0] * 10), ContextServeEstimator(_trees(0.5))
    restored.restore(json.loads(json.dumps(estimator.state())))
    for text in ("frobnicate", "ls", "other"):
        command = analyze_command(text)
        assert restored.predict(command) == estimator.predict(command)
