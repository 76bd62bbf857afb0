"""The first-word baseline, with the weakness it is there to show."""

import json

import pytest

from agentkv.commands import analyze_command
from agentkv.durations.first_word import MAX_WORDS, FirstWordEstimator


def _observed(*runs: tuple[str, float]) -> FirstWordEstimator:
    estimator = FirstWordEstimator()
    for text, duration_s in runs:
        estimator.observe(analyze_command(text), duration_s, censored=False)
    return estimator


@pytest.mark.parametrize(
    ("command", "p50_s"),
    [("cd a && pytest", 0.1), ("pytest -q", 40.0), ("unheard-of", 20.0), ("", 20.0)],
)
def test_median_is_that_of_the_first_word(command: str, p50_s: float) -> None:
    """A test run behind a `cd` is a `cd` to it; a new word gets the median of all."""
    estimator = _observed(("cd b", 0.1), ("pytest", 40.0), ("wc", 20.0))
    assert estimator.predict(analyze_command(command)).p50_s == p50_s


def test_nothing_observed_is_uncertain() -> None:
    """Before the first observation there is a broad distribution and no verdict."""
    prediction = FirstWordEstimator().predict(analyze_command("ls"))
    assert prediction.speed == "uncertain"
    assert 0 < prediction.p_over(5.0) < 1


def test_words_are_bounded() -> None:
    """However many words come, a fixed number is kept."""
    estimator = _observed(*((f"word{number}", 1.0) for number in range(MAX_WORDS + 10)))
    assert len(estimator.state()["by_word"]) == MAX_WORDS


def test_restored_estimator_predicts_the_same() -> None:
    """Saved and loaded, it says the same."""
    estimator, restored = _observed(("ls", 0.1), ("make", 40.0)), FirstWordEstimator()
    restored.restore(json.loads(json.dumps(estimator.state())))
    for text in ("ls", "make", "other"):
        command = analyze_command(text)
        assert restored.predict(command) == estimator.predict(command)


@pytest.mark.parametrize("state", [{}, {"by_word": [], "all": []}, {"by_word": {"a": 1}}])
def test_foreign_state_is_refused(state: dict[str, object]) -> None:
    """State of another shape is an error."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        FirstWordEstimator().restore(state)
