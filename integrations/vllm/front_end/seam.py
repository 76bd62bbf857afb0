"""The only module that touches vLLM's renderer and detokeniser, in an API server's process.

CONTRACT lists the names; where this vLLM lacks one, all is as stock has it. R: is
vllm/renderers/base.py and D: vllm/v1/engine/detokenizer.py, of 0.32.0.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar

from prometheus_client import Counter
from vllm.logger import init_logger

from ..server_policy import front_end_mib
from ..versions import missing_names
from .detokenizer import PromptTails
from .encoder import MismatchError, PromptEncoder

logger = init_logger(__name__)

CONTRACT: tuple[tuple[str, str], ...] = (
    ("vllm.renderers.base.BaseRenderer", "_build_tokens_prompt"),
    ("vllm.renderers.base.BaseRenderer", "_tokenize_prompt"),
    ("vllm.renderers.base.BaseRenderer", "_wants_offsets"),
    ("vllm.renderers.base.BaseRenderer", "get_tokenizer"),
    ("vllm.renderers.base.BaseRenderer", "render_chat_async"),
    ("vllm.renderers.base.BaseRenderer", "render_cmpl_async"),
    ("vllm.renderers.params.TokenizeParams", "get_encode_kwargs"),
    ("vllm.v1.engine.detokenizer.FastIncrementalDetokenizer", "decode_next"),
)
"""(owner, attribute) of every vLLM name that the front end relies on."""

_TAILS = "agentkv_tails"
"""The attribute of a renderer's tokenizer by which the detokeniser finds its tails."""

_salt: ContextVar[str] = ContextVar("agentkv_cache_salt", default="")
"""The `cache_salt` of the request of this task: those of another find nothing of its parts."""


def install(owner: Callable[[], str]) -> None:
    """Give the renderers that this process makes a front end, where their configuration wants it.

    `owner` names whose request is served in the running task. Idempotent.
    """
    missing = missing_names(CONTRACT)
    if missing:
        logger.info("agentkv: prompts are encoded as stock does: no %s", ", ".join(missing))
        return
    from transformers import TokenizersBackend
    from vllm.renderers.base import BaseRenderer
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    if hasattr(BaseRenderer, "agentkv_is_installed"):
        return
    BaseRenderer.agentkv_is_installed = True
    init = BaseRenderer.__init__

    @functools.wraps(init)
    def init_with_front_end(self: Any, config: Any, tokenizer: Any, *args: Any) -> None:
        init(self, config, tokenizer, *args)
        mib = front_end_mib(config)
        if mib and isinstance(tokenizer, TokenizersBackend):
            _, error = _attempt(FrontEnd(self, mib, owner).attach)
            if error is not None:
                logger.warning("agentkv: prompts are encoded as stock does: %s", error)

    BaseRenderer.__init__ = init_with_front_end
    prime = FastIncrementalDetokenizer.__init__

    @functools.wraps(prime)
    def prime_with_tail(self: Any, tokenizer: Any, request: Any) -> None:
        prime(self, tokenizer, _with_tail(getattr(tokenizer, _TAILS, None), request))

    FastIncrementalDetokenizer.__init__ = prime_with_tail


class FrontEnd:
    """Encodes for one renderer, in the threads in which it would have encoded itself."""

    has_series: ClassVar[bool] = True
    """False with `--disable-log-stats`, which the configuration does not tell."""

    def __init__(self, renderer: Any, mib: float, owner: Callable[[], str]) -> None:
        self._renderer = renderer
        self._max_bytes = int(mib * 2**20)
        self._owner = owner
        self._encoder: PromptEncoder | None = None
        self._is_tried = self._has_complained = False
        self._counts = self.has_series  # of the configuration made last: its own
        self._stock = renderer._tokenize_prompt

    def attach(self) -> None:
        """Replace the renderer's two ways to encode a prompt: R:728 and its twin, R:133."""
        renderer = self._renderer
        for name in ("_executor", "_tokenize_prompt_async"):  # set by its __init__
            getattr(renderer, name)
        renderer._tokenize_prompt = self.tokenize
        renderer._tokenize_prompt_async = self.tokenize_async
        for name in ("render_chat_async", "render_cmpl_async"):
            setattr(renderer, name, _with_salt(getattr(renderer, name)))

    def tokenize(self, prompt: Any, params: Any) -> Any:
        """BaseRenderer._tokenize_prompt, which callers in the engine's own process use."""
        made, later = self._tokenize(prompt, params, self._name())
        self._finish(later)
        return made

    async def tokenize_async(self, prompt: Any, params: Any) -> Any:
        """The same in the renderer's pool; what is left to do is done there after the answer."""
        loop, pool = asyncio.get_running_loop(), self._renderer._executor
        made, later = await loop.run_in_executor(pool, self._tokenize, prompt, params, self._name())
        if later is not None:
            _attempt(lambda: pool.submit(self._finish, later))  # refused by a server that ends
        return made

    def _name(self) -> str:
        return f"{self._owner()} {_salt.get()}"

    def _tokenize(
        self, prompt: Any, params: Any, owner: str
    ) -> tuple[Any, Callable[[], None] | None]:
        encoder = self._ready_encoder() if self._may_encode(prompt, params) else None
        if encoder is None:
            return self._stock(prompt, params), None
        options = params.get_encode_kwargs()
        encoded, error = _attempt(lambda: encoder.encode(prompt["prompt"], owner, **options))
        if error is not None:
            made = self._stock(prompt, params)  # raises itself where the text is at fault
            self._complain(error)
            return made, None
        return self._renderer._build_tokens_prompt(encoded.ids, prompt), encoded.later

    def _finish(self, later: Callable[[], None] | None) -> None:
        if later is not None:
            self._complain(_attempt(later)[1])

    def _may_encode(self, prompt: Any, params: Any) -> bool:
        """Not for truncated prompts, those with offsets or with more than text."""
        return (
            params.truncate_prompt_tokens is None
            and not self._renderer._wants_offsets(prompt, params)
            and not prompt.get("multi_modal_data")
            and not prompt.get("multi_modal_uuids")
        )

    def _ready_encoder(self) -> PromptEncoder | None:
        """Return the encoder, tried on vLLM's own warm-up prompt, before a server is ready."""
        if not self._is_tried:
            self._is_tried = True
            self._encoder, error = _attempt(self._make_encoder)
            self._complain(error)
        return self._encoder

    def _make_encoder(self) -> PromptEncoder | None:
        began_s = time.monotonic()
        tokenizer = self._renderer.get_tokenizer()
        tails = PromptTails(tokenizer)
        if tails.is_on:
            setattr(tokenizer, _TAILS, tails)
        try:
            count = _counted() if self._counts else lambda _, __: None
            encoder = PromptEncoder(tokenizer, self._max_bytes, count=count, on_mismatch=_report)
        except MismatchError as error:
            logger.info("agentkv: prompts are encoded as stock does: %s", error)
            return None
        logger.info(
            "agentkv: encodes each token of a conversation once, in at most %d MiB (%d special "
            "tokens to cut at, tried in %.1f s; replies decoded after the prompt's end: %s)",
            self._max_bytes >> 20,
            len(encoder.boundaries.ids),
            time.monotonic() - began_s,
            "yes" if tails.is_on else "no",
        )
        return encoder

    def _complain(self, error: Exception | None) -> None:
        if error is not None and not self._has_complained:
            self._has_complained = True
            logger.warning(
                "agentkv: a prompt was encoded as stock does (said once)", exc_info=error
            )


def _attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what a call answers, or the error that it raised: none of ours may end a request."""
    try:
        return call(), None
    except Exception as error:  # the only broad one of the front end
        return None, error


def _with_salt(render: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a request's `cache_salt` to its encoding (R:1128, R:1190)."""

    @functools.wraps(render)
    async def render_with_salt(*args: Any, **kwargs: Any) -> Any:
        before = _salt.set(str((kwargs.get("prompt_extras") or {}).get("cache_salt") or ""))
        try:
            return await render(*args, **kwargs)
        finally:
            _salt.reset(before)

    return render_with_salt


class _Tail:
    """A request as the detokeniser reads it (D:168), with the prompt's end for the prompt."""

    def __init__(self, request: Any, tail: list[int]) -> None:
        self._request = request
        self.prompt_token_ids = tail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def _with_tail(tails: PromptTails | None, request: Any) -> Any:
    prompt_ids = request.prompt_token_ids
    if tails is None or not prompt_ids:
        return request
    skip = request.sampling_params.skip_special_tokens
    tail, _ = _attempt(lambda: tails.tail_of(prompt_ids, skip_special_tokens=skip))
    return request if tail is None else _Tail(request, tail)


def _report(reason: str) -> None:
    logger.warning("agentkv: %s; from now on prompts are encoded as stock does", reason)


@functools.cache
def _counted() -> Callable[[str, int], None]:
    """Return the series of this process; prometheus_client registers a name once."""
    tokens = Counter(
        "agentkv:front_end_tokens", "Prompt tokens by where their ids are from.", ["source"]
    )
    mismatches = Counter(
        "agentkv:front_end_mismatches", "Prompts whose parts gave other ids than the whole."
    )
    by_source = {source: tokens.labels(source) for source in ("reused", "encoded")}

    def count(what: str, number: int) -> None:
        by_source.get(what, mismatches).inc(number)

    return count
