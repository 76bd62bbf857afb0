"""Two runs as `agentkv verify-pin` recorded them on the demo model, vLLM 0.32.0, blocks of 32."""

from __future__ import annotations

from agentkv.evals.commands.verify_pin import TURNS, PinRun, TTLTrial, TurnRow

TOKENS = ((136, 0), (308, 160), (550, 320), (791, 576), (958, 800))
"""Tokens of each turn's prompt, and those found in the cache; every output has 32."""


def recorded_run(policy: str | None, blocks_after: tuple[int, ...], trial: TTLTrial) -> PinRun:
    """A run with these numbers of blocks in use after its turns and all through its gaps."""
    rows = tuple(
        TurnRow(
            turn=turn + 1,
            user_prompt=TURNS[turn].user_prompt,
            reply="```bash\nls\n```",
            prompt_tokens=prompt_tokens,
            output_tokens=32,
            cached_tokens=cached_tokens,
            latency_s=1.0,
            blocks_touched=-(-(prompt_tokens + 32) // 32),
            blocks_full=(prompt_tokens + 31) // 32,
            blocks_before=blocks_after[turn - 1] if turn else 0,
            blocks_after=blocks_after[turn],
            gap_blocks=() if turn == 4 else (blocks_after[turn],) * 4,
            is_last_step=turn == 4,
            happened="",
        )
        for turn, (prompt_tokens, cached_tokens) in enumerate(TOKENS)
    )
    url = "http://127.0.0.1:8000/v1"
    return PinRun(url, "demo", policy, 32, 727, 1.0, 0, rows, trial, num_foreign_requests=0)


CONTINUUM = recorded_run("continuum", (5, 10, 18, 25, 0), TTLTrial(0, 5, 0, 2.0, 2.09, 2.09))
FCFS = recorded_run(None, (0, 0, 0, 0, 0), TTLTrial(0, 0, 0, None, None, 0.06))
