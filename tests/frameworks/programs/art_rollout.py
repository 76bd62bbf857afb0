"""A rollout for ART as a user writes it: its trainable model's own client, a tool, a session."""

from __future__ import annotations

from typing import Any

import art
from program import BASE_URL, main, shell_async

import agentkv

MODEL = art.TrainableModel(
    name="agent",
    project="tests",
    base_model="tiny",
    inference_api_key="key",
    inference_base_url=BASE_URL,
    inference_model_name="tiny",
)


@agentkv.session()
async def rollout() -> art.Trajectory:
    client = MODEL.openai_client()
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "Is it there?"}])
    while True:
        completion = await client.chat.completions.create(
            model=MODEL.get_inference_name(), messages=trajectory.messages()
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        calls = agentkv.parse_tool_calls(choice.message)
        if not calls:
            return trajectory
        ids = (call.id for call in choice.message.tool_calls or ())
        for call, call_id in zip(calls, ids, strict=True):
            with agentkv.current_job().tool(call):
                result = await shell_async(call.command)
            answer = {"role": "tool", "tool_call_id": call_id, "content": result}
            trajectory.messages_and_choices.append(answer)


async def play() -> Any:
    (group,) = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout() for _ in range(1))]
    )
    return group.trajectories[0].messages()[-1]["content"]


if __name__ == "__main__":
    main({"async": play})
