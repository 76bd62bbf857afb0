"""What a request of vLLM's says to agentkv, and the text of its reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.request import Request

from agentkv.policies.settings import MAX_WEIGHT
from agentkv.protocol import (
    CLIENT_FIELD,
    CLIENT_WEIGHT_FIELD,
    MAX_ID_CHARS,
    JobKey,
    Tags,
    parse_tags,
)

logger = init_logger(__name__)

NO_TAGS = Tags()


def tags_of(request: Request) -> Tags:
    """The tags in a request's `vllm_xargs`.

    Without a job's id there, a trainer's hint has it, or vLLM's own session id.

    Ids of jobs are those by which the engine knows the jobs of the request's client (`JobKey`).
    Raises TagError for a field of the wrong type or out of range.
    """
    sampling = request.sampling_params
    fields = dict(sampling.extra_args or {}) if sampling is not None else {}
    if not fields and not request.session_id:
        return NO_TAGS
    if fields.get("job_id") is None:
        fields["job_id"] = _trajectory_in(fields) or request.session_id
    tags = parse_tags(fields, flags_as_numbers=True)
    if tags.job_id is None:
        return tags
    client, parent_id = client_of(request), tags.parent_job_id
    return replace(
        tags,
        job_id=JobKey(client, tags.job_id),
        parent_job_id=None if parent_id is None else JobKey(client, parent_id),
    )


def _trajectory_in(fields: Mapping[str, Any]) -> str | None:
    """The trajectory that uni-agent, on verl, names for its own KV offloading.

    Of the hint nothing else is read: a lease is no part of its version 2 any more. Source:
    verl-project/uni-agent, uni_agent/gateway/agent_hint.py, version 2.
    """
    params = fields.get("kv_transfer_params")
    hint = params.get("agent_hint") if isinstance(params, Mapping) else None
    name = hint.get("trajectory_id") if isinstance(hint, Mapping) else None
    return name if isinstance(name, str) and 0 < len(name) <= MAX_ID_CHARS else None


def client_of(request: Request) -> str:
    """The client that the API server named; "" without an API server."""
    sampling = request.sampling_params
    client = (sampling.extra_args or {}).get(CLIENT_FIELD) if sampling is not None else None
    return client if isinstance(client, str) else ""


def weight_of(request: Request) -> float | None:
    """The client's weight, if the API server says one."""
    sampling = request.sampling_params
    weight = (sampling.extra_args or {}).get(CLIENT_WEIGHT_FIELD) if sampling is not None else None
    return float(weight) if isinstance(weight, int | float) and 0 < weight <= MAX_WEIGHT else None


class ReplyDecoder:
    """Turns a reply's tokens into text, by the tokenizer of the model that is served.

    The tokenizer is loaded on the first call, in the thread that decodes; it is the instance that
    vLLM's engine uses for structured outputs. Without one (`--skip-tokenizer-init`), or if it
    cannot be loaded, every text is empty, after one warning.
    """

    def __init__(self, model_config: Any) -> None:
        self._model_config = model_config
        self._tokenizer: Any = None
        self._is_loaded = False

    def __call__(self, token_ids: list[int]) -> str:
        """The text of these tokens, special ones included."""
        if not self._is_loaded:
            self._is_loaded = True
            self._tokenizer = self._load()
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def _load(self) -> Any:
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
