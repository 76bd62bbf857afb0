"""Many spans made few."""

from collections.abc import Iterable

from intervals.span import Span


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same numbers in as few spans as possible, in order."""
    result: list[Span] = []
    for span in sorted(spans):
        if result and result[-1].overlaps(span):
            result[-1] = Span(result[-1].start, max(result[-1].end, span.end))
        else:
            result.append(span)
    return result


def total_length(spans: Iterable[Span]) -> float:
    """How much the spans cover, overlaps counted once."""
    return sum(span.length for span in merged(spans))
