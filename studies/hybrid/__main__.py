"""Six jobs of five turns on a tiny random Qwen3-Next, in this process: what of their prompts hits.

`python -m studies.hybrid agentkv --blocks 24`. The last line is one JSON document, in which
`outputs` holds the tokens and log probabilities of every turn, to be compared between policies.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPLY_TOKENS = 8
SAMPLING: dict[str, Any] = {"max_tokens": REPLY_TOKENS, "temperature": 0, "ignore_eos": True}
SAMPLING |= {"detokenize": False}

MODEL = {
    **{"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "dtype": "bfloat16"},
    **{"vocab_size": 49152, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 4},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "num_experts": 4},
    **{"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 2},
    **{"linear_num_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    **{"shared_expert_intermediate_size": 64, "max_position_embeddings": 32768},
    "layer_types": ["linear_attention", "full_attention"] * 2,
}


def write_model(folder: str | Path) -> None:
    """Write the model with random weights by which a wrong state says something else.

    With vLLM's dummy weights, norms among them, rounding hides what a recurrent layer says; and
    one that is initialised as for training forgets nearly all of a state in a few tokens.
    """
    import torch
    from transformers import AutoModelForCausalLM, Qwen3NextConfig

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3NextConfig(**MODEL))
    for name, weights in model.named_parameters():
        if name.endswith(".A_log"):
            weights.data.fill_(-9.0)  # e^-9 of a state's logarithm a token
    model.save_pretrained(folder)


def make_engine(options: argparse.Namespace) -> Any:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            write_model(folder)
        flags: dict[str, Any] = {"model": options.model or folder, "enforce_eager": True}
        flags |= {"skip_tokenizer_init": True, "max_model_len": 8192, "max_num_seqs": 8}
        flags |= {"max_num_batched_tokens": 4096, "num_gpu_blocks_override": options.blocks}
        flags |= {"enable_prefix_caching": True, "mamba_cache_mode": "align"}
        flags |= {"scheduling_policy": options.policy, "prefix_match_unit": options.match_unit}
        return LLMEngine.from_engine_args(EngineArgs(**flags))


def prompt_of(num_tokens: int, salt: int) -> list[int]:
    return [10 + (salt * 7919 + i * 31 + i * i % 97) % 40000 for i in range(num_tokens)]


def noting_preempted(engine: Any, preempted: set[str]) -> None:
    """Have the engine's scheduler add the turns that it preempts to `preempted`."""
    scheduler = engine.engine_core.engine_core.scheduler
    schedule = scheduler.schedule

    def noted(*args: Any) -> Any:
        output = schedule(*args)
        preempted.update(name.rpartition("-")[0] for name in output.preempted_req_ids or ())
        return output

    scheduler.schedule = noted


def play(engine: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Send each job's next turn `--tool-s` after the one before; sum up what turns found."""
    from vllm import SamplingParams

    prompts = {job: prompt_of(1200, job + 1) for job in range(options.jobs)}
    due, rows = [(0.0, job, 1) for job in prompts], []
    live: dict[str, tuple[int, int]] = {}
    outputs: dict[str, Any] = {}
    preempted: set[str] = set()
    noting_preempted(engine, preempted)
    while due or live:
        for entry in sorted(each for each in due if each[0] <= time.monotonic()):
            due.remove(entry)
            _, job, turn = entry
            live[name := f"{job}-{turn}"] = job, turn
            tags = {"job_id": str(job), "is_last_step": turn == options.turns}
            extra = None if options.policy == "fcfs" else tags
            params = SamplingParams(**SAMPLING, logprobs=1, extra_args=extra)
            engine.add_request(name, {"prompt_token_ids": prompts[job]}, params)
        for answer in [each for each in engine.step() if each.finished]:
            job, turn = live.pop(answer.request_id)
            said = answer.outputs[0]
            chances = [next(iter(each.values())).logprob for each in said.logprobs]
            outputs[answer.request_id] = list(said.token_ids), chances
            rows.append((turn, len(prompts[job]), answer.num_cached_tokens))
            if turn < options.turns:
                prompts[job] += [*said.token_ids, *prompt_of(options.new, 100 + job * 10 + turn)]
                due.append((time.monotonic() + options.tool_s, job, turn + 1))
        if not live:
            time.sleep(0.005)
    found = {**hits(rows), "recomputed_tokens": lost(engine), "preempted": sorted(preempted)}
    return {**vars(options), **found, "outputs": outputs}


def lost(engine: Any) -> dict[str, int]:
    """Tokens that were there when a turn ended and were computed again, by reason; not of stock."""
    watchers = getattr(engine.engine_core.engine_core.scheduler, "watchers", None)
    totals: dict[str, Any] = watchers.counters.totals() if watchers else {}
    return dict(totals.get("recomputed_tokens_total", {}))


def hits(rows: Sequence[tuple[int, int, int]]) -> dict[str, float]:
    """What was found of the prompts; `rows` are turn, prompt tokens and those found."""
    later = [row for row in rows if row[0] > 1]
    shares = {
        name: round(sum(row[2] for row in some) / max(1, sum(row[1] for row in some)), 4)
        for name, some in (("hit_share", rows), ("hit_share_of_later_turns", later))
    }
    return {"hit_tokens": sum(row[2] for row in rows), **shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy")
    parser.add_argument("--model", metavar="DIR", help="a folder that `write_model` wrote")
    for name, default in (("blocks", 24), ("jobs", 6), ("turns", 5), ("new", 260)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--match-unit", type=int)
    parser.add_argument("--tool-s", type=float, default=0.5)
    options = parser.parse_args()
    print(json.dumps(play(make_engine(options), options)), flush=True)
    os._exit(0)  # the engine's threads need not end


if __name__ == "__main__":
    main()
