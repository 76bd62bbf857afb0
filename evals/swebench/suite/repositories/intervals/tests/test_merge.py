from intervals.merge import merged, total_length
from intervals.span import Span


def test_nothing():
    assert merged([]) == []


def test_spans_apart_stay_apart():
    assert merged([Span(5, 6), Span(1, 2)]) == [Span(1, 2), Span(5, 6)]


def test_overlapping_spans_become_one():
    assert merged([Span(1, 4), Span(3, 6)]) == [Span(1, 6)]


def test_a_span_inside_another():
    assert merged([Span(1, 9), Span(3, 4)]) == [Span(1, 9)]


def test_overlaps_count_once():
    assert total_length([Span(0, 4), Span(2, 6)]) == 6
