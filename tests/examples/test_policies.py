"""All example policies: their form, and what they do to vLLM's real scheduler under pressure."""

import ast
import random
from pathlib import Path

import pytest

from agentkv.guard import Fault
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

from .rules import FOLDER, NAMES

MAX_LINES = 150


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_rule_is_one_short_file_that_names_its_source(path: Path) -> None:
    """A file has at most 150 lines with something in them, and says what its source left open."""
    text = path.read_text(encoding="utf-8")
    words = ast.get_docstring(ast.parse(text)) or ""
    assert sum(map(bool, map(str.strip, text.splitlines()))) <= MAX_LINES
    assert "Source: " in words or path.stem == "mine"
    assert path.stem in ("fcfs", "mine") or ("Left open" in words and "Not in it" in words)


@pytest.mark.parametrize("class_name", NAMES)
def test_a_shortage_ends_with_all_turns_done_and_all_blocks_back(
    class_name: str, model_config: Path
) -> None:
    """Jobs that fill the pool three times over all end, without a fault of the policy."""
    engine = Engine(num_blocks=60, max_num_seqs=6, policy=NAMES[class_name])
    faults: list[Fault] = []
    engine.scheduler.retention.policy.guard.report = faults.append
    rng = random.Random(0)
    prompts = {f"job-{number}": prompt_of(rng.randint(80, 400), salt=number) for number in range(9)}
    for turn in range(1, 4):
        requests = {}
        for number, (job_id, prompt) in enumerate(prompts.items()):
            tags = {"job_id": job_id, "turn": turn, "is_last_step": int(turn == 3)}
            request_id = engine.add(prompt, max_tokens=rng.randint(4, 40), **tags)
            requests[job_id] = engine.scheduler.requests[request_id]
            for _ in range(number % 3):
                engine.step(step_s=0.5)
        engine.run()
        prompts = {
            job_id: [*request.all_token_ids, *prompt_of(30, salt=turn)]
            for job_id, request in requests.items()
        }
        engine.wait(rng.uniform(0.0, 4.0))
    engine.step()
    # on a busy machine any answer may be late, which costs nothing: it is used
    assert [fault for fault in faults if not fault.is_late] == []
    assert (engine.pinned, engine.num_free) == ({}, 59)
