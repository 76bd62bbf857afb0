"""CPU seconds of each stage of a later turn from its body to `schedule()`, without a model.

Each stage is vLLM's own code, called as its server does, with stock's renderer and with ours; CPU
time of the whole process, so that other load on the machine does not count.
"""

from __future__ import annotations

import copy
import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import ChatParams, TokenizeParams, renderer_from_config
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.request import Request
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from agentkv.integrations.vllm import plugin
from agentkv.integrations.vllm.api.middleware import fold
from agentkv.integrations.vllm.front_end.encoder import NUM_CHECKED_FIRST

from .conversation import WINDOW, Conversations, Messages, body_of

BLOCK_TOKENS = 16
HEADERS = {"x-agentkv-job-id": "job-1", "x-agentkv-turn": "7"}

STAGES = {
    "middleware": "the plugin's middleware reads and folds the tags (not in stock)",
    "body": "JSON and pydantic",
    "template": "messages checked, chat template rendered",
    "encode": "text to ids",
    "checks": "length, range of ids, copies",
    "transport": "msgpack, both sides",
    "hashes": "the engine's request with its block hashes",
    "first text": "the detokeniser's first step",
}


class Turn:
    """The stages of one side's later turns."""

    def __init__(self, model: Path, *flags: str) -> None:
        plugin.register()
        parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
        given = ("--model", str(model), "--max-model-len", str(WINDOW), *flags)
        self._config = EngineArgs.from_cli_args(parser.parse_args(given)).create_engine_config()
        self.renderer = renderer_from_config(self._config)
        self.renderer.warmup(ChatParams())
        self._inputs = InputProcessor(self._config, self.renderer)
        init_none_hash(sha256_cbor)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, sha256_cbor)
        self.is_ours = bool(flags)

    def play(self, messages: Messages) -> tuple[dict[str, float], list[int], str]:
        """CPU seconds of each stage, the prompt's ids, and the first token's text."""
        seconds: dict[str, float] = {}

        def timed(stage: str, call: Callable[[], Any]) -> Any:
            began_s = time.process_time()
            made = call()
            seconds[stage] = time.process_time() - began_s
            return made

        body = body_of(messages)
        if self.is_ours:
            body = timed("middleware", lambda: fold(body, HEADERS, []))
        request = timed("body", lambda: ChatCompletionRequest.model_validate(json.loads(body)))
        params = ChatParams(chat_template_kwargs={"tokenize": False, "add_generation_prompt": True})
        prompt = timed("template", lambda: self.renderer.render_messages(request.messages, params))
        options = TokenizeParams(max_total_tokens=WINDOW, add_special_tokens=False)
        encode = self.renderer._tokenize_prompt
        encoded = timed("encode", lambda: encode(prompt[1], options))
        core: EngineCoreRequest = timed("checks", lambda: self._check(encoded, options))
        sent = timed("transport", lambda: _transport(core))
        timed("hashes", lambda: Request.from_engine_core_request(sent, self._hasher))
        text = timed("first text", lambda: self._first_text(core))
        return seconds, list(core.prompt_token_ids or ()), text

    def _check(self, encoded: Any, options: TokenizeParams) -> EngineCoreRequest:
        prompt = options.apply_post_tokenization(self.renderer.tokenizer, encoded)
        made = self.renderer.process_for_engine(prompt, time.time())
        params = SamplingParams(max_tokens=1)
        return self._inputs.process_inputs("request", made, params, ("generate",))

    def _first_text(self, core: EngineCoreRequest) -> str:
        detokenizer = IncrementalDetokenizer.from_new_request(self.renderer.tokenizer, core)
        detokenizer.update([1000], False)
        return str(detokenizer.get_next_output_text(True, False))


def _transport(core: EngineCoreRequest) -> Any:
    frames = MsgpackEncoder().encode(core)
    return MsgpackDecoder(EngineCoreRequest).decode([bytes(frame) for frame in frames])


def measure(model: Path, sizes: list[int], num: int, seed: int) -> Iterator[dict[str, Any]]:
    """One row for each size: medians and quartiles of each stage of later turns, and the first
    turn's encoding. Raises SystemExit if the two sides ever differ in ids or text."""
    sides = {"stock": Turn(model), "ours": Turn(model, plugin.FRONT_END_FLAG, "64")}
    for size in sizes:
        conversations = Conversations(seed)
        messages = conversations.history(size)
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for number in range(num + 1 + NUM_CHECKED_FIRST):
            gc.collect()
            played = {
                name: sides[name].play(copy.deepcopy(messages))
                for name in (list(sides) if number % 2 else list(sides)[::-1])
            }
            if played["stock"][1:] != played["ours"][1:]:
                raise SystemExit(f"ids or text of turn {number} at {size} tokens differ")
            for name, (seconds, ids, _) in played.items():
                turns[name].append({**seconds, "tokens": float(len(ids))})
            conversations.grow(messages)
        yield {"tokens": int(turns["stock"][-1]["tokens"]), "n": num, **_summed(turns)}


def _summed(turns: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    totals = {}
    for name, played in turns.items():
        later = played[1 + NUM_CHECKED_FIRST :]  # here the check is no background
        stages = {
            stage: np.percentile([each.get(stage, 0.0) * 1e3 for each in later], (25, 50, 75))
            for stage in STAGES
        }
        sums = [sum(each.get(stage, 0.0) for stage in STAGES) * 1e3 for each in later]
        totals[name] = float(np.median(sums))
        row[name] = {
            **{stage: [round(value, 2) for value in values] for stage, values in stages.items()},
            "total": [round(value, 2) for value in np.percentile(sums, (25, 50, 75))],
            "first turn": round(sum(played[0].get(stage, 0.0) for stage in STAGES) * 1e3, 2),
        }
    row["ours of stock"] = round(totals["ours"] / totals["stock"], 3)
    return row


def describe(row: dict[str, Any]) -> str:
    """A table of the stages: ms of CPU and their share of stock's whole."""
    whole = row["stock"]["total"][1]
    lines = [f"{row['tokens']} tokens, n = {row['n']}: ms (share of stock's sum)"]
    for stage in (*STAGES, "total"):
        stock, ours = row["stock"][stage][1], row["ours"][stage][1]
        shares = f"{stock:8.2f} {stock / whole:6.1%} {ours:8.2f} {ours / whole:6.1%}"
        lines.append(f"  {stage:12} {shares}  {STAGES.get(stage, '')}")
    return "\n".join(lines)
