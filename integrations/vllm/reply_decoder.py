"""Text of a reply's tokens, by the tokenizer of the model that is served."""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config

logger = init_logger(__name__)


class ReplyDecoder:
    """Decodes in the thread that calls it; the tokenizer is got on the first call.

    It is the instance that vLLM's engine has loaded for structured outputs. Without one
    (`--skip-tokenizer-init`), or if it cannot be loaded, every text is empty, after one warning.
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
