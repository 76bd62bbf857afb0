"""The study of tenants makes its table from rows alone, and the yardstick is half a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.evals.simulator.cost import Batch
from agentkv.evals.simulator.machine import Limits, make_machine
from studies.tenants.__main__ import main
from studies.tenants.regimes import half_of


def test_half_a_machine_has_half_the_blocks_and_half_the_speed() -> None:
    """The null block is no memory, and each step takes twice as long."""
    machine = make_machine("h100", None, Limits(num_blocks=775))
    half, batch = half_of(machine), Batch()
    batch.add_prefill(100, 50)
    assert half.pool_tokens == machine.pool_tokens / 2
    assert half.cost.step_s(batch) == pytest.approx(2 * machine.cost.step_s(batch))


def test_ratios_are_taken_within_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two seeds the table has the mean ratio and the range, and the document the worst."""
    place = {"workload": "bfcl", "blocks": 775, "policy": "agentkv", "error": None, "mean_s": 9.0}
    rows = [
        {
            **place,
            "unit": f"{seed}",
            "seed": seed,
            "clients": {"light": {"mean_s": light_s}, "heavy": {"mean_s": 30.0}},
            "alone_on_half": {"mean_s": half_s},
        }
        for seed, light_s, half_s in ((0, 10.0, 10.0), (1, 30.0, 20.0))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["--tables", "--out", str(tmp_path)]) == 0
    table = (tmp_path / "tables.md").read_text()
    assert "1.25" in table
    assert "1.00, 1.50" in table
    assert json.loads(capsys.readouterr().out)["worst_ratio"] == 1.5


def test_rows_are_not_played_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --resume or --force rows that are there stop the study."""
    (tmp_path / "rows.jsonl").write_text("")
    assert main(["--out", str(tmp_path)]) == 2
    assert "--resume" in capsys.readouterr().err
