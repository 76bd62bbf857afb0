import pytest

from timetext.writing import text_of


@pytest.mark.parametrize(("seconds", "text"), [(45, "45s"), (5400, "1h30m"), (172800, "2d")])
def test_units_that_are_needed(seconds, text):
    assert text_of(seconds) == text


def test_all_units():
    assert text_of(93784) == "1d2h3m4s"
