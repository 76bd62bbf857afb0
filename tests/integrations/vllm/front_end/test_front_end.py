"""vLLM's own renderer and detokeniser, with the front end and without."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.renderers import ChatParams, TokenizeParams, renderer_from_config
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from agentkv.errors import SettingsError
from agentkv.integrations.vllm import plugin
from agentkv.integrations.vllm.api.engine_client import served_client
from agentkv.integrations.vllm.front_end import seam
from agentkv.integrations.vllm.server_policy import FRONT_END_KEY, front_end_mib
from agentkv.integrations.vllm.versions import missing_names

Messages = list[dict[str, str]]


def config_of(model: Path, *flags: str) -> Any:
    plugin.register()
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    args = parser.parse_args(["--model", str(model), "--max-model-len", "8192", *flags])
    return EngineArgs.from_cli_args(args).create_engine_config()


@pytest.fixture(scope="module")
def renderers(tiny_model_dir: Path) -> dict[str, Any]:
    """Stock's renderer and ours, under stock's scheduling."""
    flags = {"stock": (), "ours": (plugin.FRONT_END_FLAG, "1")}
    made = {
        name: renderer_from_config(config_of(tiny_model_dir, *given))
        for name, given in flags.items()
    }
    for renderer in made.values():
        renderer.warmup(ChatParams())
    return made


def history(num_turns: int) -> Messages:
    return [
        {"role": ("user", "assistant")[number % 2], "content": f"{number}: " + "some words " * 40}
        for number in range(2 * num_turns + 1)
    ]


def tokens(**options: Any) -> TokenizeParams:
    return TokenizeParams(max_total_tokens=8192, add_special_tokens=False, **options)


async def chat(renderer: Any, messages: Messages, params: TokenizeParams, **extras: Any) -> Any:
    _, (prompt,) = await renderer.render_chat_async(
        [messages],
        ChatParams(chat_template_kwargs={"tokenize": False, "add_generation_prompt": True}),
        params,
        prompt_extras=extras or None,
    )
    return {key: value for key, value in prompt.items() if key != "arrival_time"}


def num_tokens(source: str) -> float:
    from prometheus_client import REGISTRY

    name = "agentkv:front_end_tokens_total"
    return REGISTRY.get_sample_value(name, {"source": source}) or 0.0


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "truncated": {"truncate_prompt_tokens": 300},
    "truncated on the left": {"truncate_prompt_tokens": 300, "truncation_side": "left"},
    "offsets": {"return_token_offsets": True},
    "detokenised": {"needs_detokenization": True},
    "lower case": {"do_lower_case": True},
    "room for the reply": {"max_output_tokens": 100},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_prompts_are_stocks(renderers: dict[str, Any], feature: str) -> None:
    """Every key of the engine's input is what stock makes of the same turns."""
    params = tokens(**FEATURES[feature])

    async def play() -> None:
        for num_turns in (4, 5, 6):
            stock, ours = [
                await chat(renderer, history(num_turns), params) for renderer in renderers.values()
            ]
            assert ours == stock

    before = num_tokens("reused")
    asyncio.run(play())
    is_skipped = feature.startswith(("truncated", "offsets"))
    assert (num_tokens("reused") == before) is is_skipped


def test_completions_and_errors_are_stocks(renderers: dict[str, Any]) -> None:
    """Text, ids and what vLLM refuses: no renderer tells itself from the other."""

    async def said(renderer: Any, prompt: Any) -> Any:
        try:
            (made,) = await renderer.render_cmpl_async([prompt], TokenizeParams(8192))
        except Exception as error:
            return type(error), str(error)
        return made["prompt_token_ids"]

    text = "<|im_start|>user\n" + "one two three " * 500
    prompts = [
        *({"prompt": text}, {"prompt": f"{text}<|im_end|>four"}, {"prompt_token_ids": [1, 2, 3]}),
        *(
            {"prompt": "\ud800" + text},
            {"prompt": text * 10},
            {"prompt": text * 90},
            {"prompt": ""},
        ),
    ]
    for prompt in prompts:
        answers = [asyncio.run(said(each, dict(prompt))) for each in renderers.values()]
        assert answers[0] == answers[1]


def test_clients_and_salts_share_nothing(renderers: dict[str, Any]) -> None:
    """A text is found by its client and `cache_salt` alone."""
    messages = history(8)

    async def encoded(client: str, **extras: Any) -> float:
        served_client.set(client)
        before = num_tokens("reused")
        await chat(renderers["ours"], messages, tokens(), **extras)
        await asyncio.sleep(0)
        renderers["ours"]._executor.submit(int).result()  # behind what was left to do
        return num_tokens("reused") - before

    for client, extras in (("a", {}), ("b", {}), ("b", {"cache_salt": "x"})):
        assert asyncio.run(encoded(client, **extras)) == 0
        assert asyncio.run(encoded(client, **extras)) > 0


@pytest.mark.parametrize("stop", [None, ["e"]])
def test_replies_are_stocks(renderers: dict[str, Any], stop: list[str] | None) -> None:
    """vLLM's detokeniser says the same, reads no more than the prompt's end, and stops alike."""
    prompt = renderers["stock"].tokenizer("some words, and more of them " * 200)["input_ids"]
    reply = [*range(100, 140), 2, 0, *range(300, 340)]
    texts = []
    for renderer in renderers.values():
        request = Request(prompt, SamplingParams(stop=stop, skip_special_tokens=False))
        made = IncrementalDetokenizer.from_new_request(renderer.tokenizer, request)
        stopped = [made.update([token_id], False) for token_id in reply]
        texts.append((made.output_text, made.output_token_ids, stopped))
        assert request.reads <= 4
    assert texts[0] == texts[1]


class Request:
    """An engine's request as the detokeniser reads it."""

    request_id = "x"
    prompt_embeds = None

    def __init__(self, prompt_ids: list[int], params: SamplingParams) -> None:
        self._prompt_ids = prompt_ids
        self.sampling_params = params
        self.reads = 0

    @property
    def prompt_token_ids(self) -> list[int]:
        self.reads += 1
        return self._prompt_ids


@pytest.mark.parametrize(
    ("flags", "mib"),
    [
        ((), 0.0),
        ((plugin.FRONT_END_FLAG, "8"), 8.0),
        (("--scheduling-policy", "agentkv"), 64.0),
        (("--scheduling-policy", "agentkv", plugin.FRONT_END_FLAG, "0"), 0.0),
        (
            ("--additional-config", json.dumps({"agentkv": {FRONT_END_KEY: 2}})),
            2.0,
        ),
    ],
)
def test_stock_policies_have_it_only_where_asked(
    tiny_model_dir: Path, flags: tuple[str, ...], mib: float
) -> None:
    """Ours have it by default; the flag is heard under both."""
    assert front_end_mib(config_of(tiny_model_dir, *flags)) == mib


def test_what_is_no_size_is_refused(tiny_model_dir: Path) -> None:
    """Under stock policies, too, with what was given and what is allowed."""
    with pytest.raises(SettingsError, match="'front_end_mib': got -1"):
        front_end_mib(config_of(tiny_model_dir, plugin.FRONT_END_FLAG, "-1"))


def test_a_vllm_without_the_names_is_told_by_them() -> None:
    """Every name that is touched exists here; of another vLLM those are listed that it lacks."""
    assert missing_names(seam.CONTRACT) == []
    gone = (("vllm.renderers.base.BaseRenderer", "gone"), ("vllm.nowhere.It", "gone"))
    assert missing_names(gone) == [f"{owner}.{name}" for owner, name in gone]


@pytest.fixture(autouse=True)
def nothing_failed(caplog: pytest.LogCaptureFixture) -> Any:
    """Fail a test in which the front end fell back for an error of its own."""
    with caplog.at_level(logging.WARNING, logger=seam.logger.name):
        yield
    assert not [record for record in caplog.records if "as stock does" in record.getMessage()]
