"""The study of training steps: its engine of fewer tokens, and its tables."""

from __future__ import annotations

import importlib

import pytest

from agentkv.evals.simulator.cost import Batch
from studies.rollouts.__main__ import tables
from studies.rollouts.regimes import REGIMES, engine_of


def test_a_simulated_token_takes_as_long_as_those_it_stands_for() -> None:
    """Sixteen steps over whole contexts take as long as one over a sixteenth of them."""
    seconds = []
    for tokens_each in (1, 16):
        batch = Batch()
        for context_tokens in (4000, 16_000, 32_000):
            batch.add_decode(context_tokens // tokens_each - 1)
        seconds.append(engine_of(REGIMES["short"], tokens_each).cost.step_s(batch))
    assert seconds[1] == pytest.approx(16 * seconds[0])


def test_tables_have_ratios_to_stock_of_the_same_seed() -> None:
    """Of two seeds, one of which stock did not play, one counts."""
    row = {"regime": "short", "tokens_per_s": 8.0, "hit_rate": 0.5, "recomputed_share": 0.25}
    rows = [
        {**row, "policy": policy, "seed": seed, "step_s": step_s, "last_s": step_s, "mean_s": 5.0}
        for policy, seed, step_s in (("fcfs", 1, 20.0), ("agentkv", 1, 15.0), ("agentkv", 2, 1.0))
    ]
    line = next(line for line in tables(rows).splitlines() if "`agentkv`" in line)
    cells = [cell.strip() for cell in line.split("|")[2:7]]
    assert cells == ["1", "15", "0.75 (0.75 to 0.75)", "0.75 (0.75 to 0.75)", "1.00 (1.00 to 1.00)"]


@pytest.mark.parametrize("study", ["fleet", "rollouts", "tenants", "tournament"])
def test_processes_of_a_study_find_what_they_play(study: str) -> None:
    """Processes that `python -m` starts do not import `__main__`, so they need nothing of it."""
    main = importlib.import_module(f"studies.{study}.__main__")
    names = [each for each in (main.simulate, getattr(main, "Unit", None)) if each is not None]
    assert [each.__module__ for each in names] == [f"studies.{study}.regimes"] * len(names)
