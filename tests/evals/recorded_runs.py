"""Two runs as `agentkv verify-pin` recorded them on the demo model, vLLM 0.32.0, blocks of 32."""

from __future__ import annotations

from agentkv.evals.pin_experiment import TURNS, PinRun, TTLTrial, TurnRow, Usage

USAGES = (
    Usage(136, 32, 0),
    Usage(308, 32, 160),
    Usage(550, 32, 320),
    Usage(791, 32, 576),
    Usage(958, 32, 800),
)
CONTINUUM_BLOCKS = (5, 10, 18, 25, 0)
FCFS_BLOCKS = (0, 0, 0, 0, 0)


def recorded_run(policy: str | None, blocks_after: tuple[int, ...], trial: TTLTrial) -> PinRun:
    """A run with these numbers of blocks in use after its turns and all through its gaps."""
    blocks_before = (0, *blocks_after)
    rows = tuple(
        TurnRow(
            turn=turn,
            user_prompt=script.user_prompt,
            reply="```bash\nls\n```",
            usage=usage,
            latency_s=1.0,
            blocks_before=before,
            blocks_after=after,
            gap_blocks=() if turn == len(TURNS) else (after,) * 4,
            is_last_step=turn == len(TURNS),
            happened="",
        )
        for turn, (script, usage, before, after) in enumerate(
            zip(TURNS, USAGES, blocks_before, blocks_after, strict=False), start=1
        )
    )
    return PinRun(
        base_url="http://127.0.0.1:8000/v1",
        model="demo",
        policy=policy,
        block_size=32,
        num_blocks=727,
        gap_s=1.0,
        blocks_at_start=0,
        turns=rows,
        ttl_trial=trial,
        num_foreign_requests=0,
    )


CONTINUUM = recorded_run("continuum", CONTINUUM_BLOCKS, TTLTrial(0, 5, 0, 2.0, 2.09, 2.09))
FCFS = recorded_run(None, FCFS_BLOCKS, TTLTrial(0, 0, 0, None, None, 0.06))
