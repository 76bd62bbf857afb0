"""Trajectories of SkyRL: its generator and its client, with an environment of two steps."""

from __future__ import annotations

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


if __name__ == "__main__":
    skyrl_gym.register(id="two_steps", entry_point=TwoSteps)
    main({"async": play, "engines": lambda: play(2)})
