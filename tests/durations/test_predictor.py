"""`DurationPredictor`: the same promises for every kind."""

import logging
import math
import os
from pathlib import Path
from typing import Any

import pytest

import agentkv
from agentkv.durations import KINDS, DurationPredictor

COMMANDS = ["ls", "pytest -q", "pip install x", "frobnicate", "", "cd /x && make | tail -3"]
HOSTILE = ["\udcff\udcfe", "\x00", "x" * 1_000_000, "'", "$(" * 5000, "\n" * 100, "漢字"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS + HOSTILE)
def test_any_command_gets_a_sound_prediction(kind: str, command: str) -> None:
    """Cold and after runs the speed is known, quantiles are ordered, probabilities fall from 1."""
    predictor = DurationPredictor(kind)
    for _ in range(2):
        prediction = predictor.predict(command)
        assert prediction.speed in ("fast", "slow", "uncertain")
        assert 0 < prediction.p50_s <= prediction.p90_s < math.inf
        assert 0 <= prediction.ttl_s < math.inf
        assert (prediction.ttl_s == 0) == (prediction.speed == "slow")
        shares = [prediction.p_over(seconds) for seconds in (0, 0.1, 1, 5, 60, 1e6)]
        assert shares == sorted(shares, reverse=True)
        assert all(0 <= share <= 1 for share in shares)
        assert prediction.source
        assert prediction.explanation
        for duration_s in (0.0, 0.5, 1e9):
            predictor.observe(command, duration_s)
        predictor.observe(command, 3.0, censored=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [None, 5, b"ls", ["ls"]], ids=str)
def test_what_is_no_text_is_refused(kind: str, wrong: Any) -> None:
    """TypeError names what came, such as the None of a call that runs no command."""
    predictor = DurationPredictor(kind)
    for ask in (predictor.predict, lambda c: predictor.observe(c, 1.0), agentkv.analyze_command):
        with pytest.raises(TypeError, match=r"a command is a str of bash: got .* call is None"):
            ask(wrong)
    assert predictor.num_observed == 0


def test_values_that_are_none_are_refused() -> None:
    """An unknown kind, a duration that is none and `p_over` of NaN are a ValueError that names it,
    and nothing is learned."""
    with pytest.raises(ValueError, match=r"got 'oracle', allowed are default, context_serve$"):
        DurationPredictor("oracle")
    predictor = DurationPredictor()
    for duration_s in (-1.0, math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match=f"finite number >= 0, got {duration_s}"):
            predictor.observe("ls", duration_s)
    with pytest.raises(ValueError, match="p_over: got nan, allowed is a number of seconds"):
        predictor.predict("ls").p_over(math.nan)
    assert predictor.num_observed == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_learned_survives_a_restart(kind: str, tmp_path: Path) -> None:
    """A missing file is not loaded, and one that another predictor saved gives its predictions."""
    before, after = DurationPredictor(kind), DurationPredictor(kind)
    assert after.load(tmp_path / "state.json") is False
    for index in range(30):
        before.observe(f"make target{index % 4}", 1.0 + index, censored=index % 5 == 0)
    before.save(tmp_path / "state.json")
    assert after.load(tmp_path / "state.json")
    assert after.num_observed == 30
    for command in ("make target1", "make", "ls"):
        assert after.predict(command).p50_s == pytest.approx(
            before.predict(command).p50_s, rel=0.01
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"format": 2}', "[" * 100_000, "\x00\x01"),
        '{"format": 2, "kind": "KIND", "num_observed": 3, "state": 7}',
        '{"format": 2, "kind": "KIND", "num_observed": Infinity, "state": {}}',
        '{"format": 99, "kind": "KIND", "num_observed": 3, "state": {}}',
        '{"format": 2, "kind": "other", "num_observed": 3, "state": {}}',
        '{"format": 2, "kind": "KIND", "num_observed": 3, "state": {"a": [[1]]}}',
    ],
)
def test_a_corrupt_file_is_a_warning_and_a_fresh_start(
    kind: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A corrupt file is one warning that names it, and nothing stays learned."""
    path = tmp_path / "state.json"
    path.write_text(text.replace("KIND", kind))
    predictor = DurationPredictor(kind)
    predictor.observe("ls", 50.0)
    with caplog.at_level(logging.WARNING):
        assert predictor.load(path) is False
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]
    assert predictor.num_observed == 0
    assert predictor.predict("ls").p50_s == DurationPredictor(kind).predict("ls").p50_s


@pytest.mark.parametrize("name", ["state.json", "state.json.PID.partial"])
def test_a_link_in_the_folder_does_not_lead_a_save_elsewhere(tmp_path: Path, name: str) -> None:
    """Neither one in the file's place, which is replaced, nor one by the name of a file half
    written, and the state is for its owner alone."""
    precious, path = tmp_path / "precious", tmp_path / "state.json"
    precious.write_text("as it was")
    precious.chmod(0o666)
    (tmp_path / name.replace("PID", str(os.getpid()))).symlink_to(precious)
    DurationPredictor().save(path)
    assert precious.read_text() == "as it was"
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    assert DurationPredictor().load(path)


def test_a_save_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """A full disk, here a folder in the file's place, is an OSError and no partial file."""
    path = tmp_path / "state.json"
    path.mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        DurationPredictor().save(path)
    assert list(tmp_path.iterdir()) == [path]


TESTS = agentkv.ToolCall("Bash", "./t.sh", {"command": "./t.sh"})
IN_BACKGROUND = agentkv.ToolCall("Bash", "./t.sh", {"run_in_background": True})
CUT = agentkv.ToolCall("Bash", "./t.sh", {"timeout": 3000})


@pytest.mark.parametrize("kind", KINDS)
def test_a_calls_limit_bounds_its_prediction(kind: str) -> None:
    """A call takes no longer than its limit, and its pin a second more for the way back; one in
    the background is instant."""
    predictor = DurationPredictor(kind)
    for _ in range(9):
        predictor.observe(TESTS, 60.0)
    cut = predictor.predict(CUT)
    assert cut.p50_s <= cut.p90_s <= 3.0
    assert cut.ttl_s <= 4.0
    assert cut.p_over(3.0) == 0.0
    assert predictor.predict(IN_BACKGROUND).p90_s < 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_were_cut_off_do_not_spoil_their_command(kind: str) -> None:
    """A call that came back at its limit took at least that, one in the background says nothing."""
    predictor = DurationPredictor(kind)
    before = predictor.predict(TESTS).p50_s
    for _ in range(9):
        predictor.observe(IN_BACKGROUND, 0.1)
    assert predictor.predict(TESTS).p50_s == before
    for _ in range(9):
        predictor.observe(CUT, 3.02)
    assert predictor.predict(TESTS).p50_s > 3.0
    for _ in range(9):
        predictor.observe(CUT, 0.5)
    assert predictor.predict(TESTS).p50_s < 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_person_is_waited_for_and_teaches_nothing(kind: str) -> None:
    """A tool that asks a person takes a minute; a call that a person allows says nothing of its
    command."""
    predictor = DurationPredictor(kind)
    before = predictor.predict("./deploy")
    for name, command in (("shell", "./deploy"), ("request_user_input", None)):
        call = agentkv.ToolCall(name, command, {"with_escalated_permissions": True})
        for _ in range(9):
            predictor.observe(call, 95.0)
    asked = predictor.predict(agentkv.ToolCall("request_user_input", None, {}))
    assert (asked.speed, round(asked.p50_s)) == ("slow", 60)
    assert predictor.predict("./deploy").p50_s == before.p50_s
    assert predictor.num_observed == 0
