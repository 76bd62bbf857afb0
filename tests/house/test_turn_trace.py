"""A turn stays as cheap in calls as the plan of the house wants it."""

import pytest

from tests.house import turn_trace


@pytest.mark.slow
@pytest.mark.parametrize("policy", turn_trace.POLICIES)
def test_a_turn_is_within_its_calls(policy: str) -> None:
    """Calls, files and changes of file for a finished turn and a whole one are within LIMITS."""
    figures = dict(turn_trace.figures_of(policy, turn_trace.trace_turn(policy)))
    assert len(figures) == 2
    assert turn_trace.above_limits(figures) == []
