"""Trajectories of SkyRL: its generator and its client, with an environment of two steps."""

from __future__ import annotations

import asyncio
import os
import typing
from typing import Any

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc]  # its models need Python 3.12's

import skyrl_gym  # noqa: E402
from program import BASE_URL, main, shell  # noqa: E402
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (  # noqa: E402
    RemoteInferenceClient,
)
from skyrl.train.config import GeneratorConfig, SkyRLGymConfig  # noqa: E402
from skyrl.train.generators.base import TrajectoryID  # noqa: E402
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator  # noqa: E402
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

ROOT_URL = BASE_URL.removesuffix("/v1")


class TwoSteps(BaseTextEnv):
    """An environment that runs a command in its first step, and is done with the second."""

    def __init__(self, env_config: Any, extras: Any) -> None:
        super().__init__()

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        if self.turns == 2:
            return BaseTextEnvStepOutput(observations=[], reward=1.0, done=True, metadata={})
        seen = [{"role": "user", "content": shell("ls")}]
        return BaseTextEnvStepOutput(observations=seen, reward=0.0, done=False, metadata={})


skyrl_gym.register(id="two_steps", entry_point=TwoSteps)


async def play(num_servers: int = 1) -> str:
    tokenizer = AutoTokenizer.from_pretrained(os.environ["TRAINER_MODEL"])
    urls = [ROOT_URL, *["http://127.0.0.1:1"] * (num_servers - 1)]
    client = RemoteInferenceClient(ROOT_URL, urls, 1, model_name="tiny", tokenizer=tokenizer)
    generator = SkyRLGymGenerator(GeneratorConfig(), SkyRLGymConfig(), client, tokenizer)
    question = {"role": "user", "content": "Is it there? " + "Look at every file. " * 40}
    output = await generator.agent_loop(
        [question],
        "two_steps",
        {},
        max_tokens=512,
        max_input_length=1024,
        sampling_params={"max_tokens": 16, "temperature": 0.0, "ignore_eos": True},
        trajectory_id=TrajectoryID("task", 0),
    )
    await (await client._get_session()).close()
    return f"FINISHED with {output.reward}"


def play_in_ray() -> str:
    """In a process of Ray, on the cluster that this program starts, as SkyRL's `main` does it."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    return str(ray.get(ray.remote(_play_there).remote()))


def _play_there() -> str:
    import skyrl_loop  # Ray's process has its folder on the path

    return asyncio.run(skyrl_loop.play())


if __name__ == "__main__":
    main({"async": play, "engines": lambda: play(2), "ray": play_in_ray})
