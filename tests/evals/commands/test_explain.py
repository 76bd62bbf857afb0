"""What `agentkv explain` prints; reasons on a real server: tests/server/test_explain.py."""

import pytest

from agentkv.evals.commands.explain import report
from agentkv.integrations.vllm.api import engine_side
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of


@pytest.mark.parametrize("block_tokens", [16, 640])
def test_a_large_unit_of_hits_is_named(block_tokens: int) -> None:
    """A hybrid model's turn finds nothing behind its last unit, under any policy."""
    engine = Engine(num_blocks=100, num_state_groups=1, block_tokens=block_tokens)
    engine.turn(prompt_of(700), job_id="a")
    (job,) = engine_side.explain(engine.scheduler, None, ["a"])
    assert ("hits in units of 640 tokens" in report(job)) == (block_tokens == 640)
