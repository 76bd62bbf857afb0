"""What a job took, for the user to read or print."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Totals of one job; `print(summary)` shows them as a small table.

    Token counts are the server's own: None where no reply told, and short by `turns_without_usage`
    turns where some did not (a stream without `include_usage`). Times of overlapping turns add up.
    `tool_s` is what `job.tool(...)` measured. `gap_s` is the time between a reply and the next
    request of the gaps in which nothing was measured: tools and the agent's own work together.
    """

    job_id: str
    turns: int
    failed_calls: int
    turns_without_usage: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    llm_s: float
    tool_calls: int
    tool_s: float
    gap_s: float

    def __str__(self) -> str:
        failed = f" ({self.failed_calls:,} failed calls)" if self.failed_calls else ""
        rows = {
            "job": self.job_id,
            "turns": f"{self.turns:,}{failed}",
            "prompt tokens": self._tokens(self.prompt_tokens),
            "cached tokens": self._cached(),
            "output tokens": self._tokens(self.output_tokens),
            "LLM time": f"{self.llm_s:.2f} s",
            "tool time": f"{self.tool_s:.2f} s ({self.tool_calls:,} calls)",
            "gap time": f"{self.gap_s:.2f} s (between turns, no tool measured)",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())

    def _tokens(self, count: int | None) -> str:
        if count is None:
            return "not reported"
        if not self.turns_without_usage:
            return f"{count:,}"
        turns = "turn" if self.turns_without_usage == 1 else "turns"
        return f"{count:,} ({self.turns_without_usage:,} {turns} not reported)"

    def _cached(self) -> str:
        if self.cached_tokens is None or not self.prompt_tokens:
            return self._tokens(self.cached_tokens)
        return f"{self.cached_tokens:,} ({self.cached_tokens / self.prompt_tokens:.0%} of prompt)"
