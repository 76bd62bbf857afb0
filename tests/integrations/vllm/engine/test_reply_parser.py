"""Replies are read by the parser that the server was started with, else by our dialects."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.sampling_params import SamplingParams

from agentkv import parse_tool_calls
from agentkv.integrations.vllm.engine.requests import MAX_FAULTS, ReplyDecoder, ReplyParser
from agentkv.integrations.vllm.retention.predictor import Reply
from agentkv.policies.names import PARSER_KEY
from tests.integrations.vllm.harness import Engine

SHOWN = 'So:\n```\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>\n```'
"""A call for Hermes' parser, an example for our dialects."""
PLUGIN = """
from vllm.entrypoints.generate.base.protocol import (
    ExtractedToolCallInformation, FunctionCall, ToolCall
)
from vllm.tool_parsers import ToolParser, ToolParserManager

@ToolParserManager.register_module("shout")
class Shout(ToolParser):
    def extract_tool_calls(self, model_output, request):
        if not model_output.startswith("RUN "):
            raise RuntimeError(model_output)
        call = FunctionCall(name="bash", arguments='{"command": "%s"}' % model_output[4:].lower())
        return ExtractedToolCallInformation(
            tools_called=True, tool_calls=[ToolCall(function=call)], content=None
        )
"""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A tokenizer of bytes."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({sign: number for number, sign in enumerate(signs)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def command(tokenizer: Any, text: str, parser: ReplyParser) -> str | None:
    """What a reply with this text runs."""
    token_ids = tokenizer.encode(text)
    reply = Reply(
        token_ids,
        tokenizer.decode,
        parse=lambda: parser.calls(token_ids, None, SamplingParams()),
    )
    found = reply.tool_command()
    return found and found.command


def parser_of(tokenizer: Any, *flags: str) -> ReplyParser:
    """What an engine reads replies with, if the server has this parser and plugin."""
    config = Engine().scheduler.vllm_config
    config.additional_config = {**config.additional_config, PARSER_KEY: flags}
    decoder = ReplyDecoder(config.model_config)
    decoder.tokenizer = tokenizer
    return ReplyParser(config, decoder)


def test_the_servers_parser_is_asked_before_our_dialects(tokenizer: Any) -> None:
    """What its client gets is what runs; a reply in which it finds no call, our dialects read."""
    assert parse_tool_calls(SHOWN) == []
    assert command(tokenizer, SHOWN, parser_of(tokenizer)) is None
    hermes = parser_of(tokenizer, "hermes", "")
    assert command(tokenizer, SHOWN, hermes) == "ls"
    assert command(tokenizer, "```bash\npwd\n```", hermes) == "pwd"


def test_a_parser_that_keeps_raising_is_asked_no_more(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A plugin's parser may raise now and then; from MAX_FAULTS times in a row on it rests."""
    plugin = tmp_path / "shout.py"
    plugin.write_text(PLUGIN, encoding="utf-8")
    shout = parser_of(tokenizer, "shout", str(plugin))
    for _ in range(2):
        for _ in range(MAX_FAULTS - 1):
            assert command(tokenizer, "```bash\npwd\n```", shout) == "pwd"
        assert command(tokenizer, "RUN LS", shout) == "ls"
    with caplog.at_level(logging.WARNING):
        for _ in range(MAX_FAULTS + 1):
            assert command(tokenizer, "```bash\npwd\n```", shout) == "pwd"
    assert command(tokenizer, "RUN LS", shout) is None
