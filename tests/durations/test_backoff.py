"""The default predictor: what it knows beforehand, and how runs correct it."""

import json
import math

import pytest

from agentkv.commands import analyze_command
from agentkv.durations import DurationPredictor
from agentkv.durations.backoff import (
    MAX_GROUPS,
    MAX_WEIGHTS,
    PRIOR_VARIANCE,
    BackoffEstimator,
    Effects,
)
from agentkv.durations.trees import TreeEnsemble

FAST = [
    "ls -la",
    "git status",
    "cat a.py | head -20",
    "cd /x && pwd",
    "grep -rn foo src",
    "echo hi",
    "source venv/bin/activate && ls",
    "timeout 0.5 sleep 30",
    "sleep 30 & echo started",
    "cat > a.py <<'EOF'\nimport time\ntime.sleep(60)\nEOF",
    "grep -rn 'sleep(60)' src",
    "while read x; do echo $x; done < f",
    "node --version",
    "command -v make",
    "docker exec -w /testbed c cat a.py",
    *("pkill -f 'python server.py'", "tmux send-keys -t x 'npm test' Enter"),
]
SLOW = [
    "pip install torch",
    "cd /x && npm ci",
    "sudo apt-get update",
    "docker build -t x .",
    "sleep 60",
    "for i in 1 2 3 4; do sleep 5; done",
    "python -c 'import time; time.sleep(30)'",
    "npm run dev",
    "tail -f log",
    # endless, or as long as the text says
    "timeout 0 sleep 30",
    "timeout -k 5 0 pip install x",
    "timeout 10 sleep infinity",
    "sleep 1e9",
    "sleep inf",
    "sleep $((60*10))",
    "sleep ${N:-60}",
    "sleep 30 & wait",
    "sleep 30 & ls; wait $!",
    "npm run dev & wait",
    "while true; do ls; done",
    "until [ -f done ]; do sleep 5; done",
    "for i in $(seq 60); do sleep 1; done",
    "perl -e 'sleep 30'",
    "python -W ignore -c 'import time; time.sleep(30)'",
    "ping host",
    "yes > /dev/null",
    "docker compose up",
    *("npm start", "npm run start:dev", "./start.sh", "npx next start", "python -m http.server"),
    *("rails server", "redis-server --daemonize no", "minikube start"),
    # behind what runs them
    "env -S 'make all'",
    "bash -euo pipefail -c 'make all'",
    "bash <<'E'\npip install x\nE",
    "python -X dev -mpip install x",
    "find . -name package.json -execdir npm install \\;",
    "flock /tmp/lock npm ci",
    "ssh host 'docker build .'",
    "docker exec c apt-get update",
    *("docker exec c npm ci", "docker compose run web npm ci", "kubectl exec p -- npm ci"),
    "source venv/bin/activate && pip install x",
    # under another name, or by an option
    *("./mvnw test", "podman build .", "docker-compose build", "yarn", "cmake --build build -j8"),
    *("mvn spring-boot:run", "./gradlew bootRun", "mix phx.server", "celery -A app worker"),
    # what is unknown takes little of it
    "frobnicate; docker build .",
]
UNCERTAIN = [
    *("frobnicate --all", "./mystery", "make", "pytest -q", "python fit.py", "$RUN it"),
    # nobody knows how long
    *("sleep $N", "sleep $(cat delay)", "sleep", "wait", "wait $PID", "read x", "cat > f"),
    *("while ! nc -z localhost 80; do sleep 0.1; done", "bash -o pipefail -c 'make'"),
    # a service manager starts something, or a server goes to the background, and returns
    *("systemctl start nginx", "docker start x", "pg_ctl start -D x", "service redis-server start"),
    *("redis-server --daemonize yes", "mongod --fork --logpath x", "gunicorn -D app:app"),
    # what takes long to start takes a moment to answer
    *("gh pr list", "aws s3 ls", "flutter doctor", "conda env list", "python -m pip list"),
    *("node --test", "dpkg -i x.deb", "git lfs pull", "./gradlew clean"),
    *("yarn frobnicate", "npm run frobnicate"),
    *("timeout 0s make", "find . -name x -exec pytest {} +", "python -W ignore -m pytest"),
]


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        *((text, "fast") for text in FAST),
        *((text, "slow") for text in SLOW),
        *((text, "uncertain") for text in UNCERTAIN),
    ],
)
def test_cold_verdict_follows_what_is_known_of_programs(text: str, speed: str) -> None:
    """Before any run: small tools are fast, installs and waits slow, the unknown uncertain."""
    assert DurationPredictor().predict(text).speed == speed


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ("ls", "make"),
        ("sleep 1", "sleep 10"),
        ("pytest --help", "pytest"),
        ("python -m http.server --help", "python -m http.server"),
        ("docker stats --no-stream", "docker stats"),
        ("npm run dev -- --help", "npm run dev"),
        ("uvicorn --version", "uvicorn app"),
        ("sleep 60 & ls", "sleep 60 && ls"),
        ("timeout 2 npm install", "npm install"),
        ("git status", "git status && npm install"),
        ("make", "for i in 1 2 3 4 5; do make; done"),
        ("tail log", "tail -f log"),
        ("timeout 2 sleep 30", "timeout 0 sleep 30"),
        ("sleep 5 & sleep 5 & wait", "sleep 5; sleep 5"),
        ("make & kill %1; wait", "make & wait"),
        ("find . -name x", "find . -name x -exec pytest {} +"),
        ("ls tests | xargs pytest", "ls tests | xargs -n1 pytest"),
        ("docker exec c ls", "docker exec c pytest"),
        ("pytest", "docker run --rm x pytest"),
        ("docker exec c ls", "docker exec c"),
        # a task counts, not the verb before it
        ("npm run lint:fix", "npm run build"),
        ("npm run clean", "npm run test"),
        ("gh run view 1", "gh run watch 1"),
        ("conda env list", "conda env create"),
        ("go mod tidy", "go mod download"),
        # so does a module as the program that it is, and one behind a task runner
        ("python -m pip list", "python -m pip install x"),
        ("python -m py_compile a.py", "python -m mypy a.py"),
        ("yarn tsc", "yarn jest"),
        ("cmake --install build", "cmake --build build"),
        ("timeout 5 bash -c 'while true; do ls; done'", "while true; do ls; done"),
        (
            "for i in 1 2; do sleep 2; done",
            "for i in 1 2; do for j in 1 2 3; do sleep 2; done; done",
        ),
    ],
)
def test_cold_order_follows_the_text(faster: str, slower: str) -> None:
    """Waits, limits, backgrounds, loops and sequences are read off a text never seen."""
    predictor = DurationPredictor()
    assert predictor.predict(faster).p50_s < predictor.predict(slower).p50_s


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("go test ./pkg", "go test ./..."),
        ("eslint src", "eslint ."),
        ("pip install x", "pip install -e ."),
        ("make", "rm -rf build && cmake -S . && make"),
        ("npm start", "npm run build && npm start"),
    ],
)
def test_a_whole_takes_no_less_than_a_part(part: str, whole: str) -> None:
    """However quick whole projects and sequences were where the trees were trained."""
    predictor = DurationPredictor()
    assert predictor.predict(whole).p50_s > 0.99 * predictor.predict(part).p50_s


@pytest.mark.parametrize(
    ("some", "whole"),
    [
        ("pytest -k x", "pytest"),
        ("python -m unittest tests.test_x.TestY", "python -m unittest"),
        ("python manage.py test app.tests.TestY", "python manage.py test"),
        ("mvn test -Dtest=XTest", "mvn test"),
        ("phpunit tests/XTest.php", "phpunit"),
    ],
)
def test_some_tests_take_less_than_all(some: str, whole: str) -> None:
    """However they are named."""
    predictor = DurationPredictor()
    assert predictor.predict(some).p50_s < 0.6 * predictor.predict(whole).p50_s


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("docker-compose up -d", "docker compose up -d"),
        ("podman build .", "docker build ."),
        ("./mvnw -q test", "mvn -q test"),
        ("./gradlew build", "gradle build"),
        ("bazelisk test //x", "bazel test //x"),
        ("mamba env create", "conda env create"),
        ("python -m flake8 src", "flake8 src"),
        # a tag and a letter that select no tests
        ("docker build -t x .", "docker build ."),
        ("make -k", "make"),
        ("python -m coverage report", "coverage report"),
        ("yarn eslint src", "npx eslint src"),
    ],
)
def test_what_does_the_same_takes_the_same(text: str, other: str) -> None:
    """Under another name, as a module of Python, behind a package manager, with other letters."""
    predictor = DurationPredictor()
    expected_s = predictor.predict(other).p50_s
    assert predictor.predict(text).p50_s == pytest.approx(expected_s, rel=0.01)


def test_runs_of_a_made_up_tool_decide_its_speed() -> None:
    """Ten runs of 8 s make it slow, with other arguments too; ten of 0.2 s make it fast."""
    slow, fast = DurationPredictor(), DurationPredictor()
    for index in range(10):
        slow.observe(f"frobnicate --job {index}", 8.0)
        fast.observe(f"frobnicate --job {index}", 0.2)
    assert slow.predict("frobnicate --job 77").speed == "slow"
    prediction = fast.predict("frobnicate --job 77")
    assert prediction.speed == "fast"
    assert prediction.ttl_s > prediction.p90_s


def test_a_wait_is_believed_whatever_other_waits_took() -> None:
    """Ten runs of `sleep 1` say nothing of `sleep 600`, nor of a `sleep` of unknown length."""
    predictor = DurationPredictor()
    for _ in range(10):
        predictor.observe("sleep 1", 1.0)
        predictor.observe("tail log", 0.02)
    assert predictor.predict("sleep 600").p50_s > 300
    assert predictor.predict("sleep $N").speed == "uncertain"
    assert predictor.predict("tail -f log").speed == "slow"


@pytest.mark.parametrize("question", ["--help", "--version", "-h", "-V"])
def test_a_slow_program_answers_questions_at_once(question: str) -> None:
    """Runs of minutes say nothing of its help, and its help nothing of them."""
    predictor = DurationPredictor()
    for _ in range(20):
        predictor.observe("ls -la", 0.05)
        predictor.observe("./build.sh", 300.0)
        predictor.observe("./test.sh --help", 0.1)
    assert predictor.predict(f"./build.sh {question}").p50_s < 2
    assert predictor.predict("./build.sh -j2").p50_s > 100
    assert predictor.predict("./test.sh").speed == "uncertain"


def test_the_most_alike_run_counts_most() -> None:
    """One run of the very command outweighs ten of its program with another target."""
    predictor = DurationPredictor()
    for _ in range(10):
        predictor.observe("go test ./small", 0.5)
    for _ in range(3):
        predictor.observe("go test ./integration", 60.0)
    assert predictor.predict("go test ./integration").p50_s > 20
    assert predictor.predict("go test ./small").p50_s < 1


@pytest.mark.parametrize(
    ("seen", "foretold", "times"),
    [
        ("./t.sh", "for i in {1..100}; do ./t.sh; done", 100),
        ("./t.sh", "for i in $(seq 100); do ./t.sh; done | tail", 100),
        ("./t.sh", "for ((i = 0; i < 20; i++)); do ./t.sh; done", 20),
        ("python a.py", "python a.py; python a.py", 2),
        ("go test ./x", "go test ./x && go test ./x && go test ./x", 3),
        ("./t.sh", "./t.sh & ./t.sh & wait", 1),
        ("./t.sh", "git status; ./t.sh", 1),
        ("make a | make b", "make a | make b", 1),
        ("for i in {1..20}; do ./t.sh; done", "./t.sh", 1 / 20),
        ("./t.sh; ./t.sh; ./t.sh", "for i in {1..9}; do ./t.sh; done", 3),
        ("for i in {1..20}; do ./t.sh; done", "for i in {1..20}; do ./t.sh; done", 1),
        # one of these runs, and how many rounds a loop takes that is left nobody knows
        ("./t.sh", "./t.sh || ./t.sh -v", 1),
        ("./t.sh", "if ./t.sh; then ls; else ./t.sh -v; fi", 1),
        ("./t.sh", "case $x in a) ./t.sh -a;; b) ./t.sh -b;; esac", 1),
        ("./t.sh", "for i in 1 2 3; do ./t.sh && break; done", 1),
        ("if ./t.sh -a; then ls; elif ./t.sh -b; then ls; else ./t.sh; fi", "./t.sh", 1),
        # a plan is no round
        ("make", "make -n && make", 1),
        ("make -n && make", "make", 1),
    ],
)
def test_rounds_multiply_what_one_run_took(seen: str, foretold: str, times: float) -> None:
    """A loop is foretold from single runs and a single run from a loop; side by side adds none."""
    predictor = DurationPredictor()
    for _ in range(30):
        predictor.observe(seen, 4.0)
    assert predictor.predict(foretold).p50_s == pytest.approx(4.0 * times, rel=0.3)


def test_rounds_of_small_tools_are_as_good_as_one() -> None:
    """What a run of `echo` takes is mostly the trip there and back."""
    predictor = DurationPredictor()
    for _ in range(30):
        predictor.observe("echo x", 0.05)
    assert predictor.predict("for i in {1..100}; do echo x; done").speed == "fast"


def test_a_cut_off_loop_teaches_what_a_round_takes_at_least() -> None:
    """Twenty rounds cut at 60 s: one round takes 3 s or more, not 60."""
    predictor = DurationPredictor()
    for _ in range(10):
        predictor.observe("for i in {1..20}; do ./t.sh; done", 60.0, censored=True)
    assert 3 < predictor.predict("./t.sh").p50_s < 30


def test_recent_runs_count_more() -> None:
    """After a change from 1 s to 10 s, five runs are enough to follow."""
    predictor = DurationPredictor()
    for duration_s in [1.0] * 30 + [10.0] * 5:
        predictor.observe("make", duration_s)
    assert predictor.predict("make").p50_s > 5


def test_a_cut_off_run_teaches_that_it_takes_longer() -> None:
    """Runs cut at 30 s say more than 30, not 30; and one longer than 30 is never made shorter."""
    cut, exact = DurationPredictor(), DurationPredictor()
    for _ in range(5):
        cut.observe("weird job", 30.0, censored=True)
        exact.observe("weird job", 30.0)
    assert cut.predict("weird job").p50_s > exact.predict("weird job").p50_s
    assert cut.predict("weird job").p_over(30.0) > 0.8


def test_a_limit_in_the_text_bounds_the_prediction() -> None:
    """`timeout 3` stops it: nothing is predicted far beyond 3 s, whatever was seen without."""
    predictor = DurationPredictor()
    for _ in range(5):
        predictor.observe("timeout 3 make", 3.0)
    assert predictor.predict("timeout 3 make").p_over(4.0) < 0.01


def test_prediction_explains_itself() -> None:
    """Which program, what is usual, how many runs at which likeness, and the numbers."""
    predictor = DurationPredictor()
    cold = predictor.predict("cd /x && pip install y")
    assert cold.source == "prior"
    assert "`pip:install`: usually about 10 s; no run like it seen yet" in cold.explanation
    predictor.observe("pip install y", 4.0)
    warm = predictor.predict("pip install y")
    assert warm.source == "runs"
    assert "1 run of this command" in warm.explanation


def test_memory_is_bounded() -> None:
    """Beyond the limit the groups not seen for longest are forgotten."""
    estimator = BackoffEstimator(TreeEnsemble([]))
    for index in range(MAX_GROUPS // 2):
        estimator.observe(analyze_command(f"tool{index} x{index}"), 1.0, censored=False)
    state = estimator.state()
    assert len(state["groups"]) == MAX_GROUPS
    assert len(json.dumps(state)) < 4_000_000


def test_state_survives_a_round_trip_through_json() -> None:
    """What is restored predicts as before, to the digits kept."""
    before, after = BackoffEstimator(TreeEnsemble([])), BackoffEstimator(TreeEnsemble([]))
    for index in range(40):
        command = analyze_command(f"make target{index % 3} -j{index}")
        before.observe(command, 0.1 * index, censored=index % 7 == 0)
    after.restore(json.loads(json.dumps(before.state())))
    for text in ("make target1 -j9", "make other", "ls"):
        command = analyze_command(text)
        assert after.predict(command).p50_s == pytest.approx(
            before.predict(command).p50_s, rel=0.01
        )


def test_a_part_learns_what_it_adds() -> None:
    """Runs with a flag take e^1 times as long: the flag's weight goes there, the program's not."""
    effects = Effects()
    for _ in range(300):
        effects.observe(["go:test"], 0.0)
        effects.observe(["go:test", "-race"], 1.0)
    without, _ = effects.mean_and_variance(["go:test"])
    with_flag, _ = effects.mean_and_variance(["go:test", "-race"])
    assert without == pytest.approx(0.0, abs=0.15)
    assert with_flag == pytest.approx(1.0, abs=0.15)


def test_parts_never_seen_add_doubt_only() -> None:
    """An unknown part has weight 0 and the prior's variance."""
    assert Effects().mean_and_variance(["a", "b"]) == (0.0, 2 * PRIOR_VARIANCE)


def test_one_run_that_hung_teaches_little() -> None:
    """A run e^10 times longer than thought moves the weight no more than one e^2.5 times longer."""
    hung, long = Effects(), Effects()
    hung.observe(["make"], 10.0)
    long.observe(["make"], 2.5)
    assert hung.mean_and_variance(["make"])[0] == long.mean_and_variance(["make"])[0]


def test_weights_are_bounded_in_number() -> None:
    """Beyond the limit the parts not seen for longest are forgotten."""
    effects = Effects()
    for index in range(MAX_WEIGHTS + 10):
        effects.observe([f"part {index}"], 1.0)
    assert len(effects.state()) == MAX_WEIGHTS
    assert effects.mean_and_variance(["part 0"])[0] == 0.0


@pytest.mark.parametrize(
    "state", [[["a", 1.0]], [[1, 0.0, 0.1]], [["a", math.nan, 0.1]], [["a", "b", 0.1]], 3, None]
)
def test_a_state_of_another_shape_is_refused(state: object) -> None:
    """TypeError or ValueError, which the predictor turns into a fresh start."""
    with pytest.raises((TypeError, ValueError)):
        Effects().restore(state)  # type: ignore[arg-type]
