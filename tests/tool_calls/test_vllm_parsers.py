"""Where a parser of the installed vLLM gives an agent a call, ours find the same.

vllm_replies.toml has replies by the name of vLLM's parser of tool calls and of the one of reasoning
before it, both of which read them here.
"""

import json
import logging
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentkv import parse_tool_calls
from agentkv.tool_calls.reply_text import json_or_text

TEXT = (Path(__file__).parent / "vllm_replies.toml").read_text(encoding="utf-8")
FAMILIES = tomllib.loads(TEXT)["family"]
MAX_CUT_CHARS = 60
Calls = list[tuple[str, dict[str, str]]]


def tool(name: str, **types: str) -> dict[str, Any]:
    """A tool as a request names it, whose arguments have these types."""
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("bash", command="string", timeout="integer"),
    tool("read_file", path="string"),
    *(tool("get_time"), tool("finish")),
]


def as_text(arguments: object) -> dict[str, str]:
    """Arguments without their types, which vLLM takes from the request; broken JSON is one text."""
    if not isinstance(arguments, dict):
        return {"": str(arguments)}
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()}


def ours(reply: str) -> Calls:
    return [(call.name, as_text(dict(call.arguments))) for call in parse_tool_calls(reply)]


class ServedParser:
    """vLLM's parsers of one family, behind a tokenizer that has the tokens of all families."""

    def __init__(self, family: dict[str, Any], tokenizer: Any) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser import ParserManager

        self._class = ParserManager.get_parser(
            tool_parser_name=family["parser"],
            reasoning_parser_name=family.get("reasoning"),
            enable_auto_tools=True,
            model_name="m",
        )
        self._request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS)
        self._tokenizer = tokenizer

    def calls(self, reply: str) -> Calls:
        parser = self._class(self._tokenizer, self._request.tools)
        try:
            _, _, calls = parser.parse(reply, self._request, enable_auto_tools=True)
        except json.JSONDecodeError:  # of InternLM's, for a call cut short
            return []
        return [(call.name, as_text(json_or_text(call.arguments))) for call in calls or ()]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A tokenizer of bytes, and of every tag and token in the replies."""
    pytest.importorskip("vllm.parser", reason="vLLM before 0.31 has other parsers")
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({sign: number for number, sign in enumerate(signs)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=made)
    tokens = set(re.findall(r"</?[^<>\s=/]{2,60}>|\[[A-Z_]+\]", TEXT))
    fast.add_special_tokens({"additional_special_tokens": sorted(tokens)})
    return fast


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f"{f['parser']}-{f.get('reasoning')}")
def test_the_calls_that_vllm_finds_are_found(family: dict[str, Any], tokenizer: Any) -> None:
    """Names and arguments are the same, in order, for each reply of a family."""
    served = ServedParser(family, tokenizer)
    for reply in family["replies"]:
        theirs = served.calls(reply)
        assert theirs, reply
        assert ours(reply) == theirs, reply


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f"{f['parser']}-{f.get('reasoning')}")
def test_what_is_missing_at_the_end_is_missed_by_neither(
    family: dict[str, Any], tokenizer: Any
) -> None:
    """Where a reply cut short still gives vLLM every call, it gives ours every call.

    But for a value that the reply ends in, which may be cut short itself, or no value at all.
    """
    served = ServedParser(family, tokenizer)
    for reply in family["replies"]:
        whole = served.calls(reply)
        last = next(reversed(whole[-1][1].values()), "")
        for num_chars in range(1, min(MAX_CUT_CHARS, len(reply))):
            short = reply[:-num_chars]
            if short.rstrip().endswith(last) or served.calls(short) != whole:
                continue
            assert ours(short) == whole, short
