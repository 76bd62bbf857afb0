"""A real model with attention and recurrent layers, of random weights: what it says and hits."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from studies.hybrid.__main__ import write_model
from tests.forks import forked, run_module

FLAGS = ["--jobs=4", "--turns=3", "--tool-s=0.2"]
SHORT, ROOMY = "--blocks=16", "--blocks=60"
"""Too little for all four at once, and enough; less than 16 is refused for the model's length."""
ROUNDING = 0.02
"""Of a log probability: other chunks of a prompt move it by 0.008, another job's state by 0.1."""


@pytest.fixture(scope="session")
def hybrid_model_dir(demo_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Qwen3-Next of the study with the demo model's tokenizer."""
    folder = tmp_path_factory.mktemp("hybrid-model")
    write_model(folder)
    for path in demo_model_dir.glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


def played(process: Any, log: Path) -> dict[str, Any]:
    process.join(300)
    assert process.exitcode == 0, log.read_text()
    (document,) = (line for line in log.read_text().splitlines() if line.startswith("{"))
    answer: dict[str, Any] = json.loads(document)
    return answer


@pytest.mark.server
@pytest.mark.parametrize(
    "policy",
    [
        "agentkv",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("continuum", "context_serve")),
    ],
)
def test_a_policy_keeps_the_output_of_a_hybrid_model(
    policy: str, hybrid_model_dir: Path, tmp_path: Path
) -> None:
    """No state is another prompt's, which would say something else; and what was held is hit."""
    began = []
    for name, blocks in (("fcfs", ROOMY), (policy, SHORT)):
        arguments = ["studies.hybrid", name, f"--model={hybrid_model_dir}", blocks, *FLAGS]
        log = tmp_path / f"{name}.log"
        began.append((forked(run_module, arguments, log), log))
    stock, ours = (played(*each) for each in began)
    # a preempted prompt is cut into other chunks, by which stock changes replies as well
    changed = {turn.partition("-")[0] for turn in ours["preempted"]}
    kept = [turn for turn in ours["outputs"] if turn.partition("-")[0] not in changed]
    assert len(kept) >= 6
    for turn in kept:
        (tokens, chances), expected = ours["outputs"][turn], stock["outputs"][turn]
        assert tokens == expected[0]
        assert chances == pytest.approx(expected[1], abs=ROUNDING)
    assert ours["hit_share_of_later_turns"] > 0
    # tokens that the policy held and that were computed again all the same
    assert not ours["recomputed_tokens"].get("other")
