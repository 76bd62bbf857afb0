"""Tags of a request body end up under vllm_xargs, and nothing else in the body changes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.errors import TagError
from agentkv.integrations.vllm.api.middleware import fold, may_hold_tags
from agentkv.protocol import TAG_FIELDS, Tags
from agentkv.protocol.foreign import BODY_KEYS

NO_TAGS = Tags()
OURS = {"agentkv_wire_version": 1}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def fold_with(body: bytes, header_tags: Tags = NO_TAGS) -> bytes:
    headers = {name.lower(): value for name, value in header_tags.as_headers().items()}
    return fold(body, headers, [])


def folded(request: object, header_tags: Tags = NO_TAGS) -> Any:
    return json.loads(fold_with(json.dumps(request).encode(), header_tags))


def test_every_field_reaches_the_xargs() -> None:
    """All tags of the top level are folded under their names, the flag as a number."""
    tags = {
        "job_id": "j",
        "is_last_step": True,
        "parent_job_id": "p",
        "turn": 3,
        "expected_turns": 9,
        "last_tool": "ls",
        "last_tool_s": 0.5,
        "max_ttl_s": 60.0,
    }
    assert folded({"model": "m", **tags})["vllm_xargs"] == {**tags, "is_last_step": 1}


def test_the_rest_of_the_body_keeps_its_bytes() -> None:
    """Folding appends one member: spacing, escapes and order of all else stay as they were."""
    body = b'{ "prompt" : "\\u00e9 \\ud83d\\ude00",\n "job_id":"j", "n":1.0 } \n'
    assert fold_with(body) == body[:-4] + b' ,"vllm_xargs":{"job_id": "j"}} \n'


def test_places_count_in_the_order_of_the_contract() -> None:
    """The top level wins over extra_body, that over vllm_xargs, that over headers, by field."""
    request = {
        "job_id": "top",
        "extra_body": {"job_id": "nested", "turn": 2},
        "vllm_xargs": {"job_id": "xargs", "turn": 3, "expected_turns": 4},
    }
    header_tags = Tags(job_id="h", expected_turns=5, parent_job_id="up")
    assert folded(request, header_tags)["vllm_xargs"] == {
        "job_id": "top",
        "turn": 2,
        "expected_turns": 4,
        "parent_job_id": "up",
    }
    assert folded({}, header_tags)["vllm_xargs"]["job_id"] == "h"


def test_the_callers_own_xargs_are_kept() -> None:
    """The caller's own keys in vllm_xargs are kept."""
    request = {"job_id": "j", "vllm_xargs": {"mine": [1, 2]}}
    assert folded(request)["vllm_xargs"] == {"mine": [1, 2], "job_id": "j"}


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"job_id": "j"', b'["job_id"]', b'"job_id"', b"", b"\xff\xfe{\x00}\x00"),
        *(b'{"job_id": "j", "vllm_xargs": "text"}', b'{"job_id": "j", "vllm_xargs": [1]}'),
        *(b"[" * 100_000 + b'"job_id"', b'{"job_id": ' + b"9" * 5000 + b"}"),
    ],
    ids=["cut", "list", "text", "empty", "utf-16", "xargs-text", "xargs-list", "deep", "long-int"],
)
def test_what_vllm_rejects_is_left_to_vllm(body: bytes) -> None:
    """Malformed JSON, other types than objects and wrong xargs are left for vLLM to answer."""
    assert fold_with(body, Tags(job_id="h")) is body


def test_a_body_that_needs_no_folding_is_the_same_object() -> None:
    """A body with tags only deep inside, or already in the xargs, is not copied."""
    deep = b'{"messages": [{"turn": "x", "job_id": 5}]}'
    ready = b'{"vllm_xargs": {"job_id": "j", "is_last_step": true}}'
    assert fold_with(deep) is deep
    assert fold_with(ready) is ready


@pytest.mark.parametrize("place", ["top", "extra_body", "vllm_xargs"])
def test_a_wrong_field_is_named_in_a_short_message(place: str) -> None:
    """In any place, also where another outranks it, in at most a few hundred characters."""
    wrong = {"job_id": "x" * 1_000_000}
    request = wrong if place == "top" else {"job_id": "j", place: wrong}
    with pytest.raises(TagError, match=r"^job_id: got ") as caught:
        fold_with(json.dumps({**request, **OURS}).encode())
    assert caught.value.field == "job_id"
    assert len(str(caught.value)) < 300


def test_null_fields_are_absent() -> None:
    """A client that sends null for what it does not know is served as without the field."""
    body = b'{"job_id": null, "turn": null, "extra_body": null, "vllm_xargs": null}'
    assert fold_with(body) is body


def test_keys_quoted_in_a_prompt_cost_no_parsing() -> None:
    """Text that talks about job_id is escaped inside JSON and does not look like a key."""
    prompt = 'set "job_id" and "turn"'
    assert not may_hold_tags(json.dumps({"prompt": prompt}).encode())
    assert may_hold_tags(json.dumps({"prompt": prompt, "parent_job_id": "p"}).encode())


@settings(max_examples=25)
@given(st.dictionaries(st.text(), JSON), st.text(min_size=1, max_size=256))
def test_any_object_comes_through(request_body: dict[str, Any], job_id: str) -> None:
    """Any members of a body arrive unchanged, and the tag arrives with them."""
    for name in ("vllm_xargs", "extra_body", *TAG_FIELDS, *BODY_KEYS):
        request_body.pop(name, None)
    result = folded({**request_body, "job_id": job_id})
    assert result.pop("vllm_xargs") == {"job_id": job_id}
    assert result == {**request_body, "job_id": job_id}
