"""What a request of vLLM's says to agentkv, the text of its reply, and the calls in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.request import Request

from agentkv.errors import TagError
from agentkv.policies.jobs import Prompt
from agentkv.policies.names import PARSER_KEY
from agentkv.protocol import (
    CLIENT_FIELD,
    TAG_FIELDS,
    JobKey,
    Tags,
    bounded_id,
    read_tags,
)
from agentkv.protocol.foreign import BODY_KEYS, add_foreign
from agentkv.tool_calls import ToolCall, parse_tool_calls

from ..retention import ArrivingRequest
from . import seam

logger = init_logger(__name__)

NO_TAGS = Tags()
_CHECKED = frozenset((*TAG_FIELDS, CLIENT_FIELD))
MAX_PARSING = 200_000
"""Characters of a reply times its tags and 20 more, up to which the server's parser is asked: those
of vLLM 0.32 take time that grows with both, 4.3 s for 20 kB of HTML."""
HOLDING_PARSERS = frozenset({"pythonic", "llama4_pythonic", "olmo3"})
"""Parsers of vLLM that are never asked: a pattern of theirs may hold the interpreter for 1 s."""
SLOW_S, MAX_FAULTS = 0.25, 5
"""Seconds of processor time above which a parser was slow, since the engine's steps wait for the
interpreter meanwhile; and how often it may be slow in all, or raise in a row."""


def tags_of(request: Any) -> tuple[Tags, Sequence[TagError]]:
    """Return the tags of a request, and errors of the fields that are wrong and passed over.

    Ids of jobs are those by which the engine knows the jobs of the request's client (`JobKey`).
    What an API server hands over (`checked_fields`) is trusted. A request that comes without one,
    as from a trainer in the engine's own process, is checked here.
    """
    passed_over: Sequence[TagError] = ()
    fields = _fields(request)
    client = fields.get(CLIENT_FIELD)
    if client is None:
        tags, passed_over = _checked(fields, request.session_id)
    else:
        tags = Tags(**{name: fields[name] for name in TAG_FIELDS if name in fields})
    if tags.job_id is None:
        return tags, passed_over
    parent_id = tags.parent_job_id and JobKey(client or "", tags.parent_job_id)
    return replace(
        tags, job_id=JobKey(client or "", tags.job_id), parent_job_id=parent_id
    ), passed_over


def checked_fields(request: Any, client: str) -> dict[str, Any]:
    """Return the `vllm_xargs` that an API server hands over: checked tags, and the client."""
    fields = _fields(request)
    tags, _ = _checked(fields, request.session_id)
    others = {name: value for name, value in fields.items() if name not in _CHECKED}
    return {**others, **tags.as_fields(), CLIENT_FIELD: client}


def _checked(fields: Mapping[str, Any], session_id: str | None) -> tuple[Tags, Sequence[TagError]]:
    """Read our own fields, then what other software sends, then vLLM's own session id."""
    if not fields and not session_id:
        return NO_TAGS, ()
    passed_over: list[TagError] = []
    tags = read_tags(fields, passed_over, flags_as_numbers=True)
    if not BODY_KEYS.isdisjoint(fields):
        tags = add_foreign(tags, (fields,), {})
    if tags.job_id is None and session_id:
        tags = replace(tags, job_id=bounded_id(session_id))
    return tags, passed_over


def arriving(request: Request, tags: Tags) -> ArrivingRequest:
    """Read what retention must know of a request that enters the engine."""
    token_ids, prompt = request.prompt_token_ids, None
    if token_ids is not None:
        keys = seam.cache_keys(request)
        prompt = Prompt(token_ids, request.block_hashes, keys, request.trace_headers)
    return ArrivingRequest(
        request_id=request.request_id,
        num_prompt_tokens=request.num_prompt_tokens,
        prompt=prompt,
        tags=tags,
        client=client_of(request),
        priority=request.priority,
        max_tokens=request.max_tokens,
    )


def client_of(request: Request) -> str:
    """Return the client that the API server named; "" without an API server."""
    return str(_fields(request).get(CLIENT_FIELD, ""))


def _fields(request: Any) -> Mapping[str, Any]:
    sampling = request.sampling_params
    return (sampling.extra_args or {}) if sampling is not None else {}


class ReplyDecoder:
    """Turns a reply's tokens into text, by the tokenizer of the model that is served.

    The tokenizer is loaded on the first call, in the thread that decodes; it is the instance that
    vLLM's engine uses for structured outputs. Without one (`--skip-tokenizer-init`), or if it
    cannot be loaded, every text is empty, after one warning.
    """

    def __init__(self, model_config: Any) -> None:
        self._model_config = model_config

    def __call__(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of these tokens, special ones included or not."""
        if self.tokenizer is None:
            return ""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))

    @cached_property
    def tokenizer(self) -> Any:
        """Load the tokenizer, once; None if there is none."""
        reason: object = "--skip-tokenizer-init is given"
        tokenizer = None
        try:
            tokenizer = cached_tokenizer_from_config(self._model_config)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}"
        if tokenizer is None:
            logger.warning(
                "agentkv: replies are not read for tool calls, there is no tokenizer (%s); "
                "commands are known only where the client reports them",
                reason,
            )
        return tokenizer


class ReplyParser:
    """Reads the tool calls of a reply with the server's own parsers, as its clients get them.

    They are of vLLM or a plugin, as `--tool-call-parser` and `--reasoning-parser` name them; loaded
    on the first call, in the thread that reads replies. There are no calls without such flags, and
    none any more once a parser was slow, or has raised in a row, MAX_FAULTS times.
    """

    def __init__(self, vllm_config: Any, decoder: ReplyDecoder) -> None:
        self._config = vllm_config
        self._decoder = decoder
        self._flags = vllm_config.additional_config.get(PARSER_KEY) or ("", "")
        self._is_on = self._flags[0] not in ("", *HOLDING_PARSERS)
        self._num_slow = self._num_raised = 0

    def calls(
        self, token_ids: list[int], stop_token_id: int | None, sampling: SamplingParams
    ) -> Sequence[ToolCall]:
        """Return the calls that a client gets of a reply. Takes milliseconds."""
        if not self._is_on:
            return ()
        text = self._decoder(token_ids, skip_special_tokens=sampling.skip_special_tokens)
        ended = token_ids if stop_token_id is None else [*token_ids, stop_token_id]
        calls, start_s = None, time.thread_time()
        try:
            if len(text) * (20 + text.count("<")) <= MAX_PARSING:
                make, request = self._parser
                parser = make(self._decoder.tokenizer, model_config=self._config.model_config)
                _, _, calls = parser.parse(
                    text, request, enable_auto_tools=True, model_output_token_ids=ended
                )
            self._num_raised = 0
        except Exception:  # of another vLLM, of a plugin, or of a reply that they do not expect
            self._num_raised += 1
        self._num_slow += time.thread_time() - start_s > SLOW_S
        if max(self._num_slow, self._num_raised) == MAX_FAULTS:
            self._is_on = False
            logger.warning(
                "agentkv: the server's tool parser was slow or raised for %d replies; from now on "
                "they are read by agentkv's own dialects",
                MAX_FAULTS,
            )
        named = [{"name": call.name, "arguments": call.arguments} for call in calls or ()]
        return parse_tool_calls({"tool_calls": named})

    @cached_property
    def _parser(self) -> tuple[Any, Any]:
        """Return the parser's class, and a request whose reply may call any tools."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser import ParserManager
        from vllm.tool_parsers import ToolParserManager

        for room in ("parser", "reasoning", "tool_parsers"):  # the API server logs the same
            logging.getLogger(f"vllm.{room}").setLevel(logging.CRITICAL)
        name, plugin = self._flags
        if plugin:
            ToolParserManager.import_tool_parser(plugin)
        model = self._config.model_config
        parser = ParserManager.get_parser(
            tool_parser_name=name,
            reasoning_parser_name=self._config.structured_outputs_config.reasoning_parser,
            enable_auto_tools=True,
            model_name=model.model,
            is_harmony=model.hf_config.model_type == "gpt_oss",
        )
        request = ChatCompletionRequest(messages=[])
        request.tool_choice = "auto"
        return parser, request
