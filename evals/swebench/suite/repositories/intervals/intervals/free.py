"""What spans leave uncovered."""

from collections.abc import Iterable
from itertools import pairwise

from intervals.merge import merged
from intervals.span import Span


def gaps(spans: Iterable[Span], within: Span) -> list[Span]:
    """The parts of `within` that no span covers, in order."""
    found = []
    covered = merged(span for span in spans if span.overlaps(within))
    for before, after in pairwise(covered):
        found.append(Span(before.end, after.start))
    if covered and covered[-1].end < within.end:
        found.append(Span(covered[-1].end, within.end))
    return found
