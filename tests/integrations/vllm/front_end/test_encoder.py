"""The front end's encoder gives the tokenizer's own ids, and forgets what it must."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentkv.integrations.vllm.front_end import encoder as encoder_module
from agentkv.integrations.vllm.front_end.boundaries import find_boundaries
from agentkv.integrations.vllm.front_end.encoder import MismatchError, PromptEncoder
from tests.integrations.vllm.front_end.edits import Editor
from tests.integrations.vllm.front_end.tokenizers_of_all_kinds import KINDS

MIB = 2**20
OPTIONS = {"truncation": True, "max_length": 10**6, "add_special_tokens": False}


@pytest.fixture(scope="module", params=[*KINDS, "demo"])
def tokenizer(request: pytest.FixtureRequest, demo_model_dir: Path) -> Any:
    if request.param == "demo":
        return AutoTokenizer.from_pretrained(demo_model_dir)
    return KINDS[request.param]()


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut and encode by parts where a text is short, too, so that a test has many cuts."""
    monkeypatch.setattr(encoder_module, "MIN_TEXT_CHARS", 0)
    monkeypatch.setattr(encoder_module, "MIN_PART_CHARS", 16)


class Counted:
    """An encoder of a test, with what it told."""

    def __init__(self, tokenizer: Any, max_bytes: int = MIB) -> None:
        self.told: Counter[str] = Counter()
        self.reasons: list[str] = []
        self.encoder = PromptEncoder(
            tokenizer,
            max_bytes,
            count=self._count,
            on_mismatch=self.reasons.append,
            chance=lambda: 1.0,
        )

    def _count(self, what: str, number: int) -> None:
        self.told[what] += number

    def encode(self, text: str, owner: str = "me", **options: Any) -> list[int]:
        encoded = self.encoder.encode(text, owner, **{**OPTIONS, **options})
        if encoded.later is not None:
            encoded.later()
        return encoded.ids


def conversation(tokenizer: Any, num_messages: int = 40) -> str:
    special = next(iter(find_boundaries(tokenizer).ids))  # type: ignore[union-attr]
    return "".join(f"{special}message {number} " + "word " * 60 for number in range(num_messages))


@pytest.mark.usefixtures("short_parts")
def test_ids_are_those_of_the_whole_text(tokenizer: Any) -> None:
    """After any edit at any place the ids are the tokenizer's own for the whole text."""
    counted = Counted(tokenizer)
    editor = Editor(tokenizer, counted.encoder.boundaries, seed=1)
    for number in range(150):
        text = editor.edited()
        options = {**OPTIONS, "add_special_tokens": number % 2 == 0}
        assert counted.encode(text, **options) == tokenizer(text, **options)["input_ids"]
    assert counted.encoder.is_on
    assert not counted.reasons
    assert counted.told["reused"] > counted.told["encoded"]


def test_a_later_turn_encodes_its_end_alone(tokenizer: Any) -> None:
    """A text that goes on from another one costs its new end and a part before it."""
    counted = Counted(tokenizer)
    text = conversation(tokenizer)
    first = len(counted.encode(text))
    assert counted.told == {"encoded": first}
    counted.encode(text + conversation(tokenizer, 1))
    assert counted.told["encoded"] < 1.1 * first
    assert counted.told["reused"] > 0.9 * first


def test_memory_is_bounded_and_holds_no_text(tokenizer: Any) -> None:
    """The parts used longest ago go first, and only ids and hashes are kept."""
    counted = Counted(tokenizer, max_bytes=20_000)
    store = counted.encoder.store
    for number in range(20):
        counted.encode(f"{number} hush-{number} " + conversation(tokenizer, 20))
        assert store.num_bytes <= 20_000
    assert len(store) > 0
    counted.encode(f"19 hush-19 {conversation(tokenizer, 20)}")
    assert counted.told["reused"] > 0
    assert "hush" not in repr(vars(store))


def test_a_truncated_prompt_is_stocks(tokenizer: Any) -> None:
    """A prompt longer than the model takes has the ids, and so the error, of the tokenizer."""
    counted = Counted(tokenizer)
    text = conversation(tokenizer)
    for num_messages in (1, 2, 20):  # a known beginning, then a new end that alone is too long
        cut = {**OPTIONS, "max_length": 50}
        longer = text + conversation(tokenizer, num_messages).replace("word", "new")
        assert counted.encode(longer, **cut) == tokenizer(longer, **cut)["input_ids"]
        counted.encode(text)
    assert counted.encoder.is_on


def test_other_ids_switch_it_off(demo_model_dir: Path) -> None:
    """A tokenizer that changes is noticed, and from then on every text is encoded whole."""
    tokenizer = AutoTokenizer.from_pretrained(demo_model_dir)
    counted = Counted(tokenizer)
    text = conversation(tokenizer)
    counted.encode(text)
    tokenizer.add_tokens(["ord wo"])
    counted.encode(text + conversation(tokenizer, 1))
    assert counted.told["mismatch"] == 1
    assert len(counted.reasons) == 1
    told = dict(counted.told)
    assert counted.encode(text) == tokenizer(text, **OPTIONS)["input_ids"]
    assert counted.told == told
    assert len(counted.encoder.store) == 0


def test_only_tokens_that_nothing_touches_are_boundaries() -> None:
    """Tokens that strip, are inside others or begin with another's end cut nothing."""
    tokenizer = KINDS["awkward_added_tokens"]()
    boundaries = find_boundaries(tokenizer)
    assert boundaries is not None
    safe = {"</s>", "<|assistant|>", "[INST]", "<|end|>", "<|user|>!", "x<s"}
    assert set(boundaries.ids) == safe


def test_special_tokens_that_are_split_are_none() -> None:
    """A tokenizer that takes special tokens for plain text is left alone."""
    tokenizer = KINDS["byte_level_bpe"]()
    tokenizer.split_special_tokens = True
    with pytest.raises(MismatchError):
        PromptEncoder(tokenizer, MIB)
