"""A half-open span of numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Span:
    """All x with `start <= x < end`."""

    start: float
    end: float

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"a span cannot end at {self.end} before it starts at {self.start}")

    @property
    def length(self) -> float:
        return self.end - self.start

    def overlaps(self, other: "Span") -> bool:
        """True if some number is in both."""
        return self.start < other.end and other.start < self.end
