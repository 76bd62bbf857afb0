"""A training step as trainers have it, small enough for a CPU: rollouts in groups, then an update.

    python examples/rollouts/train.py                                   # stock and agentkv
    python examples/rollouts/train.py --steps 3 --policy agentkv --model DIR

Each step samples trajectories of several turns with a vLLM engine in this process, groups of them
from one prompt, scores them, makes a gradient step on the advantages inside each group (as GRPO
does), and hands the new weights to the engine by vLLM's own call. The same seed gives the same
trajectories under each policy. Ends with status 1 if rewards differ, or log-probabilities by more
than `MAX_DIFFERENCE`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agentkv
from agentkv.server.demo_model import prepare_demo_model

MAX_DIFFERENCE = 1e-3
"""Largest difference of a log-probability: the order of float32 sums depends on the batch."""
SETTINGS = {"agentkv": {"goal": "batch"}}
"""Settings of `agentkv`: the last trajectory counts."""
MAX_TOKENS = 2048
COLOURS = ("red", "green", "blue", "white", "black")
LINES_OF_A_LOG = 8
"""Log lines that opening a drawer prints, about 15 tokens each."""


class Drawers:
    """One trajectory's world. The same group has the same drawers; tools take their own times."""

    def __init__(self, group_seed: str, sample: int, num_turns: int, longest_tool_s: float) -> None:
        rng = random.Random(group_seed)
        self.words = [rng.choice(COLOURS) for _ in range(num_turns)]
        self._noise = rng.randrange(1000)
        self._times = random.Random(f"{group_seed} {sample}")
        self._longest_tool_s = longest_tool_s
        self.replies: list[str] = []

    @property
    def prompt(self) -> str:
        """The task, the same for all samples of a group."""
        return (
            f"Task {self._noise}. There are {len(self.words)} drawers, and a ball in each. After "
            "each drawer, write the colour of its ball in one word.\n"
            + self._log(0, "The room is lit.")
        )

    @property
    def command(self) -> str:
        """The tool that the last reply called."""
        return f"open drawer {len(self.replies)}"

    @property
    def is_done(self) -> bool:
        return len(self.replies) > len(self.words)

    async def step(self) -> str:
        """Open the next drawer: most are open at once, some take up to `longest_tool_s`."""
        await asyncio.sleep(min(self._longest_tool_s, 0.05 * self._times.paretovariate(0.8)))
        number = len(self.replies)
        word = self.words[number - 1]
        return self._log(number, f"In drawer {number} is a {word} ball.") + "The colour is"

    def _log(self, number: int, end: str) -> str:
        """A tool's output: mostly noise, as tools' outputs are."""
        lines = (
            f"log {self._noise}.{number}.{line}: {(self._noise * line + number) % 97} is ok\n"
            for line in range(LINES_OF_A_LOG)
        )
        return "\n" + "".join(lines) + end + "\n"

    @property
    def reward(self) -> float:
        """Share of the drawers whose colour the next reply names."""
        pairs = zip(self.words, self.replies[1:], strict=False)
        return sum(word in reply.lower() for word, reply in pairs) / len(self.words)


@dataclass
class Trajectory:
    """Tokens of the whole conversation; `sampled` has the places of those that the model wrote."""

    tokens: list[int]
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reward: float = 0.0
    ended_s: float = 0.0


class Rollouts:
    """Samples trajectories with an engine."""

    def __init__(self, engine: Any, options: argparse.Namespace) -> None:
        self._engine = engine
        self._options = options
        self._tokenizer = engine.get_tokenizer()

    async def step(self, number: int) -> list[list[Trajectory]]:
        """All groups of one step, at once."""
        begun_s = time.monotonic()
        groups = range(self._options.groups)
        samples = range(self._options.samples)
        jobs = [self._play(f"{number}.{group}", sample) for group in groups for sample in samples]
        played = await asyncio.gather(*jobs)
        for trajectory in played:
            trajectory.ended_s -= begun_s
        size = len(samples)
        return [list(played[start : start + size]) for start in range(0, len(played), size)]

    async def _play(self, group: str, sample: int) -> Trajectory:
        """One trajectory: the session is the only line that is agentkv's."""
        options = self._options
        world = Drawers(group, sample, options.turns, options.longest_tool_s)
        trajectory = Trajectory(self._encode(world.prompt))
        with agentkv.session(job_id=f"step{group}.{sample}", on_missing_server="ignore") as job:
            while True:
                reply = await self._turn(trajectory, f"{group}.{sample}.{len(world.replies)}")
                world.replies.append(reply)
                if world.is_done:
                    break
                with job.tool(world.command):
                    trajectory.tokens += self._encode(await world.step())
        trajectory.reward, trajectory.ended_s = world.reward, time.monotonic()
        return trajectory

    async def _turn(self, trajectory: Trajectory, name: str) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=1.0,
            max_tokens=self._options.reply_tokens,
            ignore_eos=True,
            logprobs=0,
            seed=zlib.crc32(name.encode()),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = {"prompt_token_ids": trajectory.tokens}
        async for output in self._engine.generate(prompt, params, name):
            (reply,) = output.outputs  # the final one is the only one
        start = len(trajectory.tokens)
        trajectory.sampled += range(start, start + len(reply.token_ids))
        trajectory.tokens = [*trajectory.tokens, *reply.token_ids]
        for token, known in zip(reply.token_ids, reply.logprobs, strict=True):
            trajectory.logprobs.append(known[token].logprob)
        return str(reply.text)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


class Trainer:
    """The weights under training: of the last layer, so that a CPU can do it."""

    def __init__(self, model_dir: Path, learning_rate: float = 1e-4) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self._model.requires_grad_(False)
        last = self._model.model.layers[-1].requires_grad_(True)
        self._optimizer = torch.optim.SGD(last.parameters(), lr=learning_rate)

    def update(self, groups: Sequence[Sequence[Trajectory]]) -> None:
        """One step along the advantages; groups whose rewards are all equal teach nothing."""
        torch = self._torch
        self._optimizer.zero_grad()
        for group in groups:
            rewards = torch.tensor([trajectory.reward for trajectory in group])
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            for trajectory, advantage in zip(group, advantages.tolist(), strict=True):
                if advantage:
                    self._loss(trajectory, advantage).backward()
        self._optimizer.step()

    def _loss(self, trajectory: Trajectory, advantage: float) -> Any:
        torch = self._torch
        places = torch.tensor(trajectory.sampled)
        tokens = torch.tensor(trajectory.tokens)
        hidden = self._model.model(tokens[None]).last_hidden_state[0, places - 1]
        logprobs = torch.log_softmax(self._model.lm_head(hidden), dim=-1)
        return -advantage * logprobs.gather(1, tokens[places, None]).mean()

    def save(self, folder: Path) -> None:
        self._model.save_pretrained(folder)


async def update_weights(engine: Any, folder: Path) -> None:
    """Hand weights to the engine. The pause clears the cache: no KV of the old ones may live on."""
    await engine.pause_generation(mode="wait", clear_cache=True)
    await engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
    await engine.resume_generation()


async def train(policy: str, model_dir: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train for some steps under a policy; returns what is known of each step."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(model_dir),
            dtype="float32",
            enforce_eager=True,
            max_model_len=MAX_TOKENS,
            # no prompt in parts: vLLM 0.32's CPU build cannot sample with a seed after a part
            max_num_batched_tokens=MAX_TOKENS * options.groups * options.samples,
            block_size=32,
            num_gpu_blocks_override=options.blocks,
            kv_cache_memory_bytes=512 << 20,
            scheduling_policy=policy,
            additional_config={"agentkv": SETTINGS[policy]} if policy in SETTINGS else {},
            seed=0,
            disable_log_stats=True,
        )
    )
    rollouts, trainer = Rollouts(engine, options), Trainer(model_dir)
    steps = []
    try:
        for number in range(options.steps):
            groups = await rollouts.step(number)
            begun_s = time.monotonic()
            trainer.update(groups)
            with tempfile.TemporaryDirectory() as folder:
                trainer.save(Path(folder))
                await update_weights(engine, Path(folder))
            steps.append(describe(policy, number, groups, time.monotonic() - begun_s))
            print(json.dumps({k: v for k, v in steps[-1].items() if k != "logprobs"}), flush=True)
    finally:
        engine.shutdown()
        del engine, rollouts
        gc.collect()  # the engine is in a cycle, and its finalizer fails when Python exits
    return steps


def describe(
    policy: str, number: int, groups: Sequence[Sequence[Trajectory]], update_s: float
) -> dict[str, Any]:
    """A step in numbers; its last trajectory says how long the rollouts took."""
    played = [trajectory for group in groups for trajectory in group]
    last_s = max(trajectory.ended_s for trajectory in played)
    return {
        "policy": policy,
        "step": number,
        "rollouts_s": round(last_s, 2),
        "mean_s": round(sum(trajectory.ended_s for trajectory in played) / len(played), 2),
        "update_s": round(update_s, 2),
        "tokens_per_s": round(sum(len(each.logprobs) for each in played) / last_s, 1),
        "rewards": [trajectory.reward for trajectory in played],
        "logprobs": [trajectory.logprobs for trajectory in played],
    }


def compare(steps: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether the same seed gave the same, step by step."""
    pairs = list(zip(steps, others, strict=True))
    differences = [
        abs(left - right)
        for step, other in pairs
        for own, others_own in zip(step["logprobs"], other["logprobs"], strict=True)
        for left, right in zip(own, others_own, strict=True)
    ]
    return {
        "policies": [steps[0]["policy"], others[0]["policy"]],
        "same_rewards": all(step["rewards"] == other["rewards"] for step, other in pairs),
        "largest_logprob_difference": max(differences),
        "rollouts_s_ratio": [
            round(other["rollouts_s"] / step["rollouts_s"], 3) for step, other in pairs
        ],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """0: the policies agree; 1: they do not."""
    options = _read_options(argv)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    model_dir = Path(options.model) if options.model else prepare_demo_model()
    policies = options.policy or ["fcfs", "agentkv"]
    runs = [asyncio.run(train(policy, model_dir, options)) for policy in policies]
    compared = [compare(runs[0], run) for run in runs[1:]]
    print(json.dumps({"compared": compared}), flush=True)
    agree = all(
        found["same_rewards"] and found["largest_logprob_difference"] <= MAX_DIFFERENCE
        for found in compared
    )
    return 0 if agree else 1


def _read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A small training loop on a vLLM engine.")
    add = parser.add_argument
    add("--policy", action="append", choices=("fcfs", "agentkv"), help="default: both")
    add("--model", metavar="DIR", help="default: the demo model")
    add("--steps", type=int, default=2)
    add("--groups", type=int, default=3)
    add("--samples", type=int, default=3, help="trajectories of a group")
    add("--turns", type=int, default=4, help="tool calls of a trajectory")
    add("--reply-tokens", type=int, default=12)
    add("--blocks", type=int, default=74, help="KV blocks of 32 tokens")
    add("--longest-tool-s", type=float, default=5.0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
