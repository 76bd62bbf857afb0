"""Effects of a command's parts: learned online, bounded, robust."""

import math

import pytest

from agentkv.durations.effects import MAX_WEIGHTS, PRIOR_VARIANCE, Effects


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
