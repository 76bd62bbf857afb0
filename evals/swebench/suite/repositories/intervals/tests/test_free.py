from intervals.free import gaps
from intervals.span import Span

DAY = Span(0, 24)


def test_between_two_spans():
    assert gaps([Span(0, 8), Span(10, 24)], DAY) == [Span(8, 10)]


def test_after_the_last_span():
    assert gaps([Span(0, 20)], DAY) == [Span(20, 24)]


def test_all_is_covered():
    assert gaps([Span(0, 12), Span(10, 24)], DAY) == []
