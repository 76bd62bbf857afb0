"""The default predictor has a first guess for every text, and runs correct it."""

import json
import tomllib
from pathlib import Path

import pytest

from agentkv.commands import analyze_command
from agentkv.durations import DurationPredictor
from agentkv.durations.cells import MAX_CELLS, MAX_WEIGHTS, CellEstimator

TABLES = tomllib.loads(Path(__file__).with_name("verdicts.toml").read_text("utf-8"))
RATIOS = {"shorter": (0.0, 0.9999), "parts": (0.0, 1.01), "selections": (0.0, 0.6)}
RATIOS |= {"aliases": (0.99, 1.01)}


@pytest.mark.parametrize(
    ("text", "speed"),
    [(text, speed) for speed, texts in TABLES["default"].items() for text in texts],
)
def test_cold_verdict_follows_what_is_known_of_programs(text: str, speed: str) -> None:
    """Before any run small tools are fast, installs and waits slow, the unknown uncertain."""
    assert DurationPredictor().predict(text).speed == speed


@pytest.mark.parametrize(
    ("text", "other", "kind"),
    [(*pair, kind) for kind, pairs in TABLES["ratios"].items() for pair in pairs],
)
def test_a_text_never_seen_has_its_ratio_to_another(text: str, other: str, kind: str) -> None:
    """Waits, limits, loops, parts, selected tests and aliases are read off a text never seen."""
    (least, most), predictor = RATIOS[kind], DurationPredictor()
    assert least <= predictor.predict(text).p50_s / predictor.predict(other).p50_s <= most


def learned(*runs: tuple[str, float], times: int = 10, censored: bool = False) -> DurationPredictor:
    """A predictor that has seen these runs `times` times."""
    predictor = DurationPredictor()
    for command, duration_s in runs * times:
        predictor.observe(command, duration_s, censored=censored)
    return predictor


WAITS = [("sleep 1", 1.0), ("tail log", 0.02)] * 10
SCRIPTS = [("ls -la", 0.05), ("./build.sh", 300.0), ("./test.sh --help", 0.1)] * 20
TARGETS = [("go test ./small", 0.5)] * 10 + [("go test ./integration", 60.0)] * 3
LEARNED: dict[str, list[tuple[list[tuple[str, float]], str, str | tuple[float, float]]]] = {
    "runs of `sleep 1` say nothing of another sleep, nor a `tail` of one that follows": [
        (WAITS, "sleep 600", (300, 900)),
        *((WAITS, "sleep $N", "uncertain"), (WAITS, "tail -f log", "slow")),
    ],
    "runs of minutes say nothing of a program's help, nor its help of its runs": [
        *(
            (SCRIPTS, f"./build.sh {asked}", (0, 2))
            for asked in ("--help", "--version", "-h", "-V")
        ),
        (SCRIPTS, "./build.sh -j2", (100, 900)),
    ],
    "three runs of the very command outweigh ten of its program with another target": [
        *((TARGETS, "go test ./integration", (20, 90)), (TARGETS, "go test ./small", (0, 1))),
    ],
    "a hundred rounds of `echo` are fast: a run is mostly the trip there and back": [
        ([("echo x", 0.05)] * 30, "for i in {1..100}; do echo x; done", "fast"),
    ],
    "after a change from 1 s to 10 s, five runs are enough to follow": [
        ([("make", 1.0)] * 30 + [("make", 10.0)] * 5, "make", (5, 15)),
    ],
}


@pytest.mark.parametrize(
    ("runs", "asked", "expected"), [case for cases in LEARNED.values() for case in cases]
)
def test_the_runs_most_alike_count(
    runs: list[tuple[str, float]], asked: str, expected: str | tuple[float, float]
) -> None:
    """Speed, or bounds of the median, follow the latest and most alike runs, by each of LEARNED."""
    prediction = learned(*runs, times=1).predict(asked)
    if isinstance(expected, str):
        assert prediction.speed == expected
    else:
        assert expected[0] < prediction.p50_s < expected[1]


@pytest.mark.parametrize(("duration_s", "speed"), [(8.0, "slow"), (0.2, "fast")])
def test_runs_of_an_unlisted_tool_decide_its_speed(duration_s: float, speed: str) -> None:
    """Ten runs of 8 s make it slow, ten of 0.2 s make it fast, with other arguments too."""
    runs = [(f"frobnicate --job {index}", duration_s) for index in range(10)]
    prediction = learned(*runs, times=1).predict("frobnicate --job 77")
    assert prediction.speed == speed
    assert (prediction.ttl_s > prediction.p90_s) is (speed == "fast")


@pytest.mark.parametrize(
    ("seen", "asked"),
    [
        *(("./t.sh", "./t.sh & ./t.sh & wait"), ("./t.sh", "git status; ./t.sh")),
        *(("make a | make b", "make a | make b"), ("make", "make -n && make")),
        ("for i in {1..20}; do ./t.sh; done", "for i in {1..20}; do ./t.sh; done"),
        # one of these runs
        ("./t.sh", "./t.sh || ./t.sh -v"),
        ("./t.sh", "case $x in a) ./t.sh -a;; b) ./t.sh -b;; esac"),
    ],
)
def test_what_runs_at_the_side_adds_nothing(seen: str, asked: str) -> None:
    """A text is predicted from runs of the program that takes longest in it."""
    predictor = learned((seen, 4.0), times=30)
    assert predictor.predict(asked).p50_s == pytest.approx(4.0, rel=0.3)


def test_a_cut_off_run_teaches_that_it_takes_longer() -> None:
    """Runs cut at 30 s say that it takes longer, and those cut by the text's own limit do not."""
    cut = learned(("weird job", 30.0), times=5, censored=True).predict("weird job")
    assert cut.p50_s > learned(("weird job", 30.0), times=5).predict("weird job").p50_s
    assert cut.p_over(30.0) > 0.8
    in_text = learned(("timeout 3 make", 3.0), times=5).predict("timeout 3 make")
    assert in_text.p_over(4.0) < 0.01
    # a loop says nothing of a single run
    predictor = learned(("for i in {1..20}; do ./t.sh; done", 60.0), censored=True)
    assert predictor.predict("./t.sh").p50_s < 10


def test_a_prediction_explains_itself() -> None:
    """A prediction names the program, its usual time, and the number of runs at each likeness."""
    predictor = DurationPredictor()
    cold = predictor.predict("cd /x && pip install y")
    assert cold.source == "prior"
    assert "`pip:install`: usually about 10 s; no run like it seen yet" in cold.explanation
    predictor.observe("pip install y", 4.0)
    warm = predictor.predict("pip install y")
    assert (warm.source, "1 run of this command" in warm.explanation) == ("runs", True)


def test_memory_is_bounded_and_state_restores() -> None:
    """Cells and weights seen last are kept up to a limit, and restored."""
    before, after = CellEstimator(), CellEstimator()
    for index in range(MAX_CELLS // 2):
        command = analyze_command(f"tool{index} x{index} {'y' * 5000}")
        before.observe(command, 0.1 * (index % 40), censored=index % 7 == 0)
    state = json.dumps(before.state())
    assert len(before.state()["cells"]) == MAX_CELLS
    assert len(before.state()["weights"]) <= MAX_WEIGHTS
    assert len(state) < 1_000_000
    after.restore(json.loads(state))
    for text in (f"tool{MAX_CELLS // 2 - 3} x", f"tool{MAX_CELLS // 2 - 1}", "ls"):
        expected_s = before.predict(analyze_command(text)).p50_s
        assert after.predict(analyze_command(text)).p50_s == pytest.approx(expected_s, rel=0.01)


def test_a_part_learns_what_it_adds() -> None:
    """If runs with a flag take e^2 times as long, so will the next program's that has the flag's
    program and another target."""
    runs = [(f"go test ./p{i % 9}{' -race' * (i % 2)}", 1.0 + 6.4 * (i % 2)) for i in range(200)]
    predictor = learned(*runs, times=1)
    assert predictor.predict("go test ./new -race").p50_s > 3.0
    assert predictor.predict("go test ./new").p50_s < 2.5


def test_one_run_that_hung_teaches_little() -> None:
    """After twenty runs of a second, one of an hour moves other targets less than 1.5 times."""
    runs = [(f"go test ./p{index}", 1.0) for index in range(20)]
    hung = learned(*runs, ("go test ./hung", 3600.0), times=1).predict("go test ./other").p50_s
    assert hung < 5 * learned(*runs, times=1).predict("go test ./other").p50_s
