"""Invariants of vLLM's block pool and scheduler that hold under our class."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from vllm.config import ModelConfig

from agentkv.evals.simulator.vllm_scheduler import write_model_config
from agentkv.integrations.vllm.engine.scheduler import ReplyDecoder
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of


def pinned_blocks(engine: Engine, job_id: str) -> list:
    return list(engine.retention.pins.get(job_id).blocks)


def test_the_next_turn_touches_pinned_blocks_and_copies_none(
    make_engine: Callable[..., Engine],
) -> None:
    """The next turn's first blocks are the pinned ones, by id."""
    engine = make_engine()
    history = engine.turn(prompt_of(100), job_id="a")
    before = [block.block_id for block in pinned_blocks(engine, "a")]
    request_id = engine.add(history + prompt_of(40, salt=1), max_tokens=8, job_id="a")
    engine.step()
    (after,) = engine.scheduler.kv_cache_manager.get_block_ids(request_id)
    assert after[: len(before)] == before
    assert engine.pool.blocks[before[0]].ref_cnt == 1


def test_blocks_are_freed_tail_first() -> None:
    """The head of the prefix goes to the end of the free queue: it is evicted last."""
    engine = Engine()
    engine.turn(prompt_of(100), job_id="a")
    ids = [block.block_id for block in pinned_blocks(engine, "a")]
    engine.wait(3.0)
    free = engine.pool.free_block_queue.get_all_free_blocks()
    assert [block.block_id for block in free][-6:] == ids[::-1]


def test_a_preempted_turn_restarts_and_ends_with_the_same_tokens(
    make_engine: Callable[..., Engine],
) -> None:
    """Memory decides when, never what."""
    outputs = []
    for num_blocks in (64, 20):
        engine = make_engine(num_blocks=num_blocks)
        requests = []
        for salt in range(2):
            request_id = engine.add(prompt_of(120, salt=salt), max_tokens=80, job_id=f"j{salt}")
            requests.append(engine.scheduler.requests[request_id])
        engine.run()
        outputs.append([list(request.output_token_ids) for request in requests])
        preemptions = sum(request.num_preemptions for request in requests)
        assert (preemptions > 0) == (num_blocks == 20)
    assert outputs[0] == outputs[1]


WORDS = ["<s>", "</s>", "```bash\n", "ls", " -la", "\n```", "<|call|>"]


def model_config(folder: Path, *, skip_tokenizer_init: bool = False) -> ModelConfig:
    return ModelConfig(
        model=str(write_model_config(folder)),
        dtype="float32",
        max_model_len=512,
        skip_tokenizer_init=skip_tokenizer_init,
    )


def test_special_tokens_are_text(tmp_path: Path) -> None:
    """Tool dialects are made of them."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<|call|>"],
    ).save_pretrained(tmp_path)
    decode = ReplyDecoder(model_config(tmp_path))
    assert decode([2, 3, 4, 5, 6]) == "```bash\nls -la\n```<|call|>"
    assert decode([1]) == "</s>"


@pytest.mark.parametrize(
    ("is_skipped", "reason"), [(True, "--skip-tokenizer-init"), (False, r"\w+: ")]
)
def test_without_a_tokenizer_replies_are_empty(
    is_skipped: bool, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says so, and why; then only clients tell what runs."""
    decode = ReplyDecoder(model_config(tmp_path, skip_tokenizer_init=is_skipped))
    assert [decode([1]), decode([2])] == ["", ""]
    said = [record.getMessage() for record in caplog.records if "agentkv" in record.getMessage()]
    assert len(said) == 1
    assert "only where the client reports them" in said[0]
    assert re.search(reason, said[0])


@pytest.mark.parametrize(
    ("trajectory_id", "tags", "pinned"),
    [("t_1", {}, {"t_1"}), ("t_1", {"job_id": "a"}, {"a"}), ("", {}, set()), (7, {}, set())],
)
def test_a_trainers_hint_names_the_job(
    trajectory_id: object, tags: dict[str, str], pinned: set[str]
) -> None:
    """uni-agent's `agent_hint` has the trajectory's id; a job that is named counts before it, and a
    hint that is none of ours to check is ignored."""
    engine = Engine()
    hint = {"schema_version": 2, "trajectory_id": trajectory_id}
    engine.turn(prompt_of(100), kv_transfer_params={"agent_hint": hint}, **tags)
    assert set(engine.pinned) == pinned
