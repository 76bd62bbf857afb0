import pytest

from timetext.reading import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("1h30m", 5400), ("2d", 172800), ("1d2h3m4s", 93784)]
)
def test_units_add_up(text, seconds):
    assert seconds_of(text) == seconds


def test_no_duration_at_all():
    with pytest.raises(ValueError, match="no duration"):
        seconds_of("soon")
