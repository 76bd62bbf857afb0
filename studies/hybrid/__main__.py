"""Six jobs of five turns on a tiny random Qwen3-Next, in this process: what of their prompts hits.

`python -m studies.hybrid agentkv --blocks 24`. The last line is one JSON document, in which
`outputs` holds the tokens and log probabilities of every turn, to be compared between policies.
With `--simulate` the same is played by the simulator, too, at the speed of this run's steps.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentkv.evals.simulator.calibrate import TimedStep, fit
from agentkv.evals.simulator.cost import StepBatch
from agentkv.evals.simulator.machine import Limits, machine_of
from agentkv.evals.workload.plans import JobPlan, TurnPlan, Workload
from agentkv.policies.names import simulated_policy

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


def timed(engine: Any, steps: list[TimedStep], preempted: set[str]) -> Callable[[], Any]:
    """The engine's `step`, which adds what it computed and how long it took to `steps`, and the
    turns that it preempts to `preempted`."""
    scheduler, batch = engine.engine_core.engine_core.scheduler, StepBatch()
    schedule = scheduler.schedule

    def noted(*args: Any) -> Any:
        output = schedule(*args)
        preempted.update(name.rpartition("-")[0] for name in output.preempted_req_ids or ())
        for name, num_tokens in output.num_scheduled_tokens.items():
            past_tokens = scheduler.requests[name].num_computed_tokens - num_tokens
            if num_tokens == 1:
                batch.add_decode(past_tokens)
            else:
                batch.add_prefill(num_tokens, past_tokens)
        return output

    def step() -> Any:
        nonlocal batch
        batch, began_s = StepBatch(), time.monotonic()
        answers = engine.step()
        if batch.num_prefills or batch.num_decodes:
            steps.append(TimedStep(batch, time.monotonic() - began_s, has_request=False))
        return answers

    scheduler.schedule = noted
    return step


def simulate(
    engine: Any, steps: Sequence[TimedStep], options: argparse.Namespace
) -> dict[str, Any]:
    """Play the same jobs on the simulator; these steps say how fast the engine is."""
    from agentkv.evals.simulator.run import Simulation

    limits = Limits(
        num_blocks=options.blocks,
        block_tokens=engine.vllm_config.cache_config.block_size,
        max_num_seqs=8,
        max_num_batched_tokens=4096,
        num_state_groups=1,
    )
    turns = [TurnPlan(1200, REPLY_TOKENS, "", options.tool_s)]
    turns += [TurnPlan(options.new, REPLY_TOKENS, "", options.tool_s)] * (options.turns - 1)
    jobs = tuple(JobPlan(f"job-{number}", 0.0, tuple(turns)) for number in range(options.jobs))
    found = fit(steps)
    workload, policy = Workload("hybrid", 0, jobs, None), simulated_policy(options.policy)
    run = Simulation(workload, machine_of(found.cost, limits), policy).run()
    turns_done = [turn for job in run.jobs for turn in job.turns]
    rows = [(turn.turn + 1, turn.prompt_tokens, turn.cached_tokens) for turn in turns_done]
    return {"simulated": hits(rows), "fit_mean_error": round(found.mean_error, 3)}


def play(engine: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Send each job's next turn `--tool-s` after the one before; sum up what turns found."""
    from vllm import SamplingParams

    prompts = {job: prompt_of(1200, job + 1) for job in range(options.jobs)}
    due, rows = [(0.0, job, 1) for job in prompts], []
    live: dict[str, tuple[int, int]] = {}
    outputs: dict[str, Any] = {}
    steps: list[TimedStep] = []
    preempted: set[str] = set()
    step = timed(engine, steps, preempted)
    while due or live:
        for entry in sorted(each for each in due if each[0] <= time.monotonic()):
            due.remove(entry)
            _, job, turn = entry
            live[name := f"{job}-{turn}"] = job, turn
            tags = {"job_id": str(job), "is_last_step": turn == options.turns}
            extra = None if options.policy == "fcfs" else tags
            params = SamplingParams(**SAMPLING, logprobs=1, extra_args=extra)
            engine.add_request(name, {"prompt_token_ids": prompts[job]}, params)
        for answer in [each for each in step() if each.finished]:
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
    simulated = simulate(engine, steps, options) if options.simulate else {}
    found = {**hits(rows), "recomputed_tokens": lost(engine), "preempted": sorted(preempted)}
    return {**vars(options), **found, **simulated, "outputs": outputs}


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
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--tool-s", type=float, default=0.5)
    options = parser.parse_args()
    print(json.dumps(play(make_engine(options), options)), flush=True)
    os._exit(0)  # the engine's threads need not end


if __name__ == "__main__":
    main()
