"""Encodes a prompt by the parts of it that are known, and only the others by the tokenizer.

A part begins at a special token and is encoded the same in every text (boundaries.py), so the ids
of a prompt are those of its parts, one after the other. The ids are the tokenizer's own for the
whole text, always: what cannot be shown to be so is encoded whole.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .boundaries import Boundaries, Cut, adversarial_texts, find_boundaries

MIN_TEXT_CHARS = 4096
"""Shorter prompts are encoded whole: it takes about 2 ms."""
MIN_PART_CHARS = 256
"""Parts are at least this long: shorter ones save nothing more and cost memory."""
MAX_OVERLAP_CHARS = 4096
"""A known part before unknown ones is encoded again with them, up to this length."""
MIN_KNOWN_SHARE = 0.2
"""With less of a text known it is encoded whole, and its parts are learned after the answer: to
put parts together takes 9 to 16% longer (32,000 and 100,000 tokens, medians of nine)."""
BYTES_PER_PART = 250
"""Memory that CPython takes for a part in addition to its ids."""
BYTES_PER_TOKEN = 4
CHECK_ONE_IN = 256
"""Share of uses of which the whole text is encoded in the background and compared."""
NUM_CHECKED_FIRST = 3
"""Uses after the start that are all compared."""

Ids = npt.NDArray[np.int32]


class PartStore:
    """Keeps the ids of parts by a hash of their text, in `max_bytes`; the oldest used go first.

    No text is kept. A part is found only by the owner that brought it.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._parts: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._secret = secrets.token_bytes(16)

    def keys_of(self, owner: str, parts: Sequence[str]) -> list[bytes]:
        """Return the key of each part of an owner's text; the first is unlike all others."""
        secret = hashlib.blake2b(owner.encode(), key=self._secret).digest()
        blake2b = hashlib.blake2b
        keys = [
            blake2b(part.encode("utf-8", "surrogatepass"), key=secret, digest_size=16).digest()
            for part in parts
        ]
        return [b"first" + keys[0], *keys[1:]]

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the ids of each part, as 32-bit numbers; None where they are not known."""
        parts, found = self._parts, []
        with self._lock:
            for key in keys:
                ids = parts.get(key)
                if ids is not None:
                    parts.move_to_end(key)
                found.append(ids)
        return found

    def put(self, parts: Mapping[bytes, bytes]) -> None:
        with self._lock:
            for key, ids in parts.items():
                before = self._parts.pop(key, None)
                if before is not None:
                    self.num_bytes -= len(before) + BYTES_PER_PART
                self._parts[key] = ids
                self.num_bytes += len(ids) + BYTES_PER_PART
            while self.num_bytes > self._max_bytes:
                _, ids = self._parts.popitem(last=False)
                self.num_bytes -= len(ids) + BYTES_PER_PART

    def clear(self) -> None:
        with self._lock:
            self._parts.clear()
            self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._parts)


@dataclass(frozen=True)
class EncodedPrompt:
    """The ids of a prompt, and what is left to do once they are on their way."""

    ids: list[int]
    later: Callable[[], None] | None = None


@dataclass(frozen=True)
class _CutText:
    """A text, where its parts begin after the first, and their keys."""

    text: str
    cuts: list[Cut]
    keys: list[bytes] = field(default_factory=list)

    def starts(self) -> list[int]:
        return [0, *(cut.at for cut in self.cuts), len(self.text)]

    def num_chars(self, known: Sequence[bytes | None]) -> int:
        """Count the characters of the parts whose ids are known."""
        places = itertools.pairwise(self.starts())
        return sum(end - start for (start, end), ids in zip(places, known, strict=True) if ids)


class MismatchError(Exception):
    """Raised where parts do not give the ids of the whole."""


class _TruncatedError(Exception):
    """Raised where the tokenizer leaves out the end of a text."""


class PromptEncoder:
    """Encodes prompts with one tokenizer; callable from any thread that may call the tokenizer.

    `count` gets tokens "reused" and "encoded", and each "mismatch": if parts ever give other ids
    than the whole, `on_mismatch` is called once and every text is encoded whole from then on.
    Raises MismatchError if that is so at the start, or with no special tokens to cut at.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_bytes: int,
        *,
        count: Callable[[str, int], None] = lambda _, __: None,
        on_mismatch: Callable[[str], None] = lambda _: None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.store = PartStore(max_bytes)
        self.count = count
        self.is_on = True
        self._tokenizer = tokenizer
        self._on_mismatch = on_mismatch
        self._chance = chance or secrets.SystemRandom().random
        self._num_uses = 0
        boundaries = find_boundaries(tokenizer)
        if boundaries is None:
            raise MismatchError("the tokenizer has no special tokens to cut a text at")
        self.boundaries: Boundaries = boundaries
        self._is_boundary = np.zeros(max(boundaries.ids.values()) + 1, dtype=np.bool_)
        self._is_boundary[list(boundaries.ids.values())] = True
        self._try_adversarial_texts()
        self._beginnings = self._learn_beginnings()

    def encode(self, text: str, owner: str, **options: Any) -> EncodedPrompt:
        """Return the ids that `tokenizer(text, **options)` gives.

        `options` are truncation, max_length and add_special_tokens; parts are looked for among
        those of `owner`.
        """
        beginning = self._beginnings.get(bool(options.get("add_special_tokens", True)))
        if not self.is_on or beginning is None or len(text) < MIN_TEXT_CHARS:
            return EncodedPrompt(self._whole(text, options)["input_ids"])
        cutting = self._cut(text, owner)
        known = self.store.get(cutting.keys)
        if cutting.num_chars(known) < MIN_KNOWN_SHARE * len(text):
            encoding = self._whole(text, options)
            ids: list[int] = encoding["input_ids"]
            self.count("encoded", len(ids))
            return EncodedPrompt(ids, lambda: self._learn_whole(cutting, encoding, len(beginning)))
        try:
            ids = [*beginning, *self._put_together(cutting, known, options)]
            _refuse_truncated(ids, options)
        except _TruncatedError:
            return EncodedPrompt(self._whole(text, options)["input_ids"])
        except MismatchError as error:
            self._switch_off(str(error))
            return EncodedPrompt(self._whole(text, options)["input_ids"])
        self._num_uses += 1
        if self._num_uses <= NUM_CHECKED_FIRST or self._chance() * CHECK_ONE_IN < 1:
            return EncodedPrompt(ids, lambda: self._check(text, options, ids))
        return EncodedPrompt(ids)

    def _cut(self, text: str, owner: str) -> _CutText:
        cuts = self.boundaries.cuts(text, MIN_PART_CHARS)
        starts = [0, *(cut.at for cut in cuts), len(text)]
        parts = [text[start:end] for start, end in itertools.pairwise(starts)]
        return _CutText(text, cuts, self.store.keys_of(owner, parts))

    def _whole(self, text: str, options: Mapping[str, Any]) -> Any:
        return self._tokenizer(text, **options)

    def _put_together(
        self, cutting: _CutText, known: list[bytes | None], options: Mapping[str, Any]
    ) -> list[int]:
        """Return the ids of all parts; those not known are encoded, each run of them at once."""
        starts, num_known = cutting.starts(), 0
        number = 0
        while number < len(known):
            if known[number] is not None:
                num_known += len(known[number] or b"") // BYTES_PER_TOKEN
                number += 1
                continue
            end = next(
                (later for later in range(number, len(known)) if known[later] is not None),
                len(known),
            )
            first = number
            if number and starts[number] - starts[number - 1] <= MAX_OVERLAP_CHARS:
                first = number - 1
            new = self._encode_parts(cutting, first, end, options)
            if first < number and new[0] != known[first]:
                raise MismatchError("a part has other ids than when it was encoded before")
            known[first:end] = new
            keys = cutting.keys[number:end]
            self.store.put(dict(zip(keys, new[number - first :], strict=True)))
            number = end
        joined = b"".join(part for part in known if part is not None)
        self.count("reused", num_known)
        self.count("encoded", len(joined) // BYTES_PER_TOKEN - num_known)
        ids: list[int] = np.frombuffer(joined, dtype=np.int32).tolist()
        return ids

    def _encode_parts(
        self, cutting: _CutText, first: int, end: int, options: Mapping[str, Any]
    ) -> list[bytes]:
        """Return the ids of the parts from `first` to before `end`, encoded as one text."""
        starts = cutting.starts()
        text = cutting.text[starts[first] : starts[end]]
        encoding = self._whole(text, {**options, "add_special_tokens": False})
        _refuse_truncated(encoding["input_ids"], options)
        cuts = [Cut(cut.at - starts[first], cut.token_id) for cut in cutting.cuts[first : end - 1]]
        return self._split(encoding, cuts, 0)

    def _split(self, encoding: Any, cuts: Sequence[Cut], num_before: int) -> list[bytes]:
        """Split the ids of an encoded text by its parts, by where each token stands in the text.

        Leaves out `num_before` tokens that stand for no text. Raises MismatchError unless each part
        begins with the token that its text begins with.
        """
        ids: Ids = np.array(encoding["input_ids"], dtype=np.int32)
        tokens = encoding.encodings[0]
        (candidates,) = np.nonzero(self._is_boundary[np.minimum(ids, len(self._is_boundary) - 1)])
        place: dict[int, int] = {}
        for index in candidates.tolist():
            span = tokens.token_to_chars(index)
            if span is not None and span[0] < span[1]:
                place[span[0]] = index
        starts = [num_before]
        for cut in cuts:
            index = place.get(cut.at, -1)
            if index < 0 or ids[index] != cut.token_id:
                raise MismatchError("a special token of the text is not where its parts begin")
            starts.append(index)
        starts.append(len(ids))
        return [ids[start:end].tobytes() for start, end in itertools.pairwise(starts)]

    def _learn_whole(self, cutting: _CutText, encoding: Any, num_before: int) -> None:
        """Keep the parts of a text that was encoded whole, unless it was truncated."""
        try:
            parts = self._split(encoding, cutting.cuts, num_before)
        except MismatchError:
            return  # a truncated text, or one in which the tokenizer saw what we did not
        if not encoding.encodings[0].overflowing:
            self.store.put(dict(zip(cutting.keys, parts, strict=True)))

    def _check(self, text: str, options: Mapping[str, Any], ids: list[int]) -> None:
        """Compare ids that were put together with those of the whole text."""
        if self._whole(text, options)["input_ids"] != ids:
            self._switch_off("a text put together from its parts has other ids than the whole")

    def _switch_off(self, reason: str) -> None:
        self.count("mismatch", 1)
        was_on, self.is_on = self.is_on, False
        self.store.clear()
        if was_on:
            self._on_mismatch(reason)

    def _try_adversarial_texts(self) -> None:
        """Raise MismatchError if special tokens do not cut texts made to be difficult."""
        parts = adversarial_texts(self.boundaries)
        whole = self._tokenizer("".join(parts), add_special_tokens=False)["input_ids"]
        ids = [
            token_id
            for part in parts
            for token_id in self._tokenizer(part, add_special_tokens=False)["input_ids"]
        ]
        if ids != whole:
            raise MismatchError("its special tokens do not cut every text")
        text = "".join(parts)
        cuts = self.boundaries.cuts(text, MIN_PART_CHARS)
        try:
            self._split(self._tokenizer(text, add_special_tokens=False), cuts, 0)
        except NotImplementedError as error:  # of fastokens, which is fast without us
            raise MismatchError(str(error)) from None

    def _learn_beginnings(self) -> dict[bool, list[int]]:
        """Learn the ids that the tokenizer puts before a text, without and with special tokens.

        The second is missing where it puts some behind it, too, or does either only at times.
        """
        beginnings: dict[bool, list[int]] = {False: []}
        texts = ("a", " b\n", f"{next(iter(self.boundaries.ids))}c")
        before = []
        for text in texts:
            ids = self._tokenizer(text, add_special_tokens=True)["input_ids"]
            own = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            num_before = len(ids) - len(own)
            before.append(ids[:num_before] if ids[num_before:] == own else None)
        if before[0] is not None and all(each == before[0] for each in before):
            beginnings[True] = before[0]
        return beginnings


def _refuse_truncated(ids: Sequence[int], options: Mapping[str, Any]) -> None:
    if options.get("truncation") and len(ids) >= options["max_length"]:
        raise _TruncatedError
