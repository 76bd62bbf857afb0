"""Loops written by hand over SDKs and HTTP libraries: three calls of a model, no framework."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from program import BASE_URL, MODEL, main

TURNS = range(3)
MESSAGES: Any = [{"role": "user", "content": "PLAN-answer"}]
CHAT = {"model": MODEL, "messages": MESSAGES}
ROOT_URL = BASE_URL.removesuffix("/v1")


def loop(call: Any) -> str:
    for _ in TURNS:
        answer = call()
        time.sleep(0.05)
    return answer


async def loop_async(call: Any) -> str:
    for _ in TURNS:
        answer = await call()
        await asyncio.sleep(0.05)
    return answer


def openai_sdk() -> str:
    import openai

    client = openai.OpenAI()
    return loop(lambda: client.chat.completions.create(**CHAT).choices[0].message.content)


def anthropic_sdk() -> str:
    import anthropic

    client = anthropic.Anthropic(base_url=ROOT_URL, api_key="key")
    return loop(lambda: client.messages.create(max_tokens=99, **CHAT).content[0].text)


def anthropic_stream() -> str:
    import anthropic

    client = anthropic.Anthropic(base_url=ROOT_URL, api_key="key")

    def call() -> str:
        with client.messages.stream(max_tokens=99, **CHAT) as stream:
            return stream.get_final_text()

    return loop(call)


def litellm_call(provider: str = "hosted_vllm", **options: Any) -> Any:
    return {"model": f"{provider}/{MODEL}", "messages": MESSAGES, "api_base": BASE_URL, **options}


def litellm_sync() -> str:
    import litellm

    call = litellm_call()
    return loop(lambda: litellm.completion(**call).choices[0].message.content)


async def litellm_async() -> str:
    import litellm

    async def call() -> str:
        return (await litellm.acompletion(**litellm_call())).choices[0].message.content

    return await loop_async(call)


def litellm_stream() -> str:
    import litellm

    def call() -> str:
        chunks = litellm.completion(**litellm_call(stream=True))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    return loop(call)


def litellm_openai() -> str:
    import litellm

    call = litellm_call("openai")
    return loop(lambda: litellm.completion(**call).choices[0].message.content)


def instructor_sync() -> str:
    import instructor
    import openai
    from pydantic import BaseModel

    class Answer(BaseModel):
        text: str

    client = instructor.from_openai(openai.OpenAI())
    messages = [{"role": "user", "content": "PLAN-object"}]
    return loop(
        lambda: (
            client.chat.completions.create(
                model=MODEL, messages=messages, response_model=Answer
            ).text
        )
    )


main(
    {
        "openai": openai_sdk,
        "anthropic": anthropic_sdk,
        "anthropic_stream": anthropic_stream,
        "litellm": litellm_sync,
        "litellm_async": litellm_async,
        "litellm_stream": litellm_stream,
        "litellm_openai": litellm_openai,
        "instructor": instructor_sync,
    }
)
