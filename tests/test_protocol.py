"""The wire fields: the values that are accepted, and how a refusal reads."""

import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv import AgentKVError, TagError
from agentkv.protocol import (
    MAX_COMMAND_CHARS,
    MAX_DURATION_S,
    MAX_TOOL_HEADER_CHARS,
    MAX_TURN,
    TAG_FIELDS,
    Tags,
    bounded_id,
    header_fields,
    parse_header_tags,
    parse_tags,
    parse_tool_event,
    read_tags,
)

ALL_TAGS = {
    "job_id": "django-11451",
    "is_last_step": False,
    "parent_job_id": "root",
    "turn": 3,
    "expected_turns": 30,
    "last_tool": "pytest -x",
    "last_tool_s": 1.5,
    "max_ttl_s": 60.0,
}

EVENT = {"state": "finished", "tool": "bash", "command": "ls", "duration_s": 0.25, "turn": 2}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def refused(parse: Callable[[Any], object], raw: Any) -> str:
    """The field that a TagError names; the message says what was seen and what is allowed."""
    with pytest.raises(TagError) as caught:
        parse(raw)
    message = str(caught.value)
    assert message.startswith(f"{caught.value.field}: got ")
    assert "allowed is" in message
    assert len(message) < 300
    return caught.value.field


def test_every_field_survives_the_round_trip() -> None:
    """Parsing the output of as_fields gives the same fields; null and other keys do not count."""
    assert parse_tags(ALL_TAGS).as_fields() == ALL_TAGS
    assert tuple(ALL_TAGS) == TAG_FIELDS
    assert parse_tags({"job_id": None, "temperature": 0.3}) == Tags()
    assert Tags().as_fields() == {}
    assert parse_tool_event({**EVENT, "unknown": []}).as_fields() == EVENT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("job_id", value) for value in ("", "x" * 257, "x" * 1_000_000, 7, ["a"], "\ud800")),
        ("parent_job_id", "x" * 257),
        *(("is_last_step", value) for value in ("true", 1)),
        *(("turn", value) for value in (0, -1, True, 1.0, "1", MAX_TURN + 1)),
        ("expected_turns", 0),
        *(("last_tool", value) for value in ("", "x" * 4097)),
        *(("last_tool_s", value) for value in (math.nan, math.inf, -0.1, MAX_DURATION_S * 2)),
        *(("last_tool_s", value) for value in ("1.0", True, 10**400)),
        *(("state", value) for value in ("running", None, ["started"], ["x" * 100] * 6)),
        *(("duration_s", value) for value in (-1, math.nan)),
        *(("command", "x" * (MAX_COMMAND_CHARS + 1)), ("tool", "")),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: object) -> None:
    """The error names the field, clips the value, and says what is allowed."""
    if field in ALL_TAGS:
        assert refused(parse_tags, {**ALL_TAGS, field: value}) == field
    if field in EVENT:
        assert refused(parse_tool_event, {**EVENT, field: value}) == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", "x" * 256),
        ("job_id", "työ/#?%\n"),
        ("turn", MAX_TURN),
        ("last_tool", "x" * 4096),
        ("last_tool_s", 0),
        ("last_tool_s", MAX_DURATION_S),
        ("command", "x" * MAX_COMMAND_CHARS),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_the_limits_themselves_are_accepted(field: str, value: Any) -> None:
    """The largest and the smallest allowed value of a field pass."""
    found = parse_tool_event if field in EVENT else parse_tags
    assert getattr(found({"state": "started", field: value}), field) == value


def test_numbers_are_flags_only_on_request() -> None:
    """vllm_xargs turns true into 1, so its reader accepts 0 and 1; the body's does not."""
    assert parse_tags({"is_last_step": 1}, flags_as_numbers=True).is_last_step is True
    assert parse_tags({"is_last_step": 0.0}, flags_as_numbers=True).is_last_step is False
    with pytest.raises(TagError):
        parse_tags({"is_last_step": 2}, flags_as_numbers=True)


@given(st.dictionaries(st.sampled_from(TAG_FIELDS), json_values))
def test_any_json_is_either_accepted_or_refused_in_words(fields: dict[str, Any]) -> None:
    """No JSON value makes the parser fail otherwise, and accepted values can be encoded."""
    try:
        accepted = parse_tags(fields).as_fields()
    except TagError as error:
        str(error).encode()
    else:
        json.dumps(accepted, allow_nan=False, ensure_ascii=False).encode()


@given(json_values)
def test_any_json_as_a_tool_event_is_accepted_or_refused(body: Any) -> None:
    """The body of the tool route can be any JSON: without a known state it is refused."""
    if isinstance(body, dict) and body.get("state") in ("started", "finished"):
        assert parse_tool_event(body).state == body["state"]
    else:
        assert refused(parse_tool_event, body) in ("body", "state")


valid_texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=256)
valid_turns = st.integers(1, MAX_TURN)
valid_tags = st.builds(
    Tags,
    job_id=st.none() | valid_texts,
    is_last_step=st.none() | st.booleans(),
    parent_job_id=st.none() | valid_texts,
    turn=st.none() | valid_turns,
    expected_turns=st.none() | valid_turns,
    last_tool=st.none() | st.text(st.sampled_from(" %\t\nxé✓"), min_size=1, max_size=1500),
    last_tool_s=st.none() | st.floats(0, MAX_DURATION_S),
    max_ttl_s=st.none() | st.floats(0, MAX_DURATION_S),
)


@given(valid_tags)
def test_every_tag_survives_as_a_header(tags: Tags) -> None:
    """What `as_headers` writes is legal in HTTP and reads back the same; a long tool is cut."""
    headers = {name.lower(): value for name, value in tags.as_headers().items()}
    for value in headers.values():
        assert value == value.strip()
        assert value.isascii()
        assert value.isprintable()
    read = parse_header_tags(headers).as_fields()
    written = tags.as_fields()
    tool, whole_tool = str(read.pop("last_tool", "")), str(written.pop("last_tool", ""))
    assert read == written
    assert whole_tool.startswith(tool)
    if tool != whole_tool:
        spare_chars = MAX_TOOL_HEADER_CHARS - len(headers["x-agentkv-last-tool"])
        assert 0 <= spare_chars < 12  # the longest character takes nine, a blank two more


def test_the_headers_of_a_tagged_request_look_like_this() -> None:
    """Only what a header cannot hold is encoded, and X-Session-ID repeats the job's id."""
    tags = Tags("työ 7/100%", False, "root", 3, 30, " ls -l\n", 1.5)
    assert tags.as_headers() == {
        "X-AgentKV-Job": "ty%C3%B6 7/100%25",
        "X-AgentKV-Last-Step": "false",
        "X-AgentKV-Parent": "root",
        "X-AgentKV-Turn": "3",
        "X-AgentKV-Expected-Turns": "30",
        "X-AgentKV-Last-Tool": "%20ls -l%0A",
        "X-AgentKV-Last-Tool-S": "1.5",
        "X-Session-ID": "ty%C3%B6 7/100%25",
    }
    assert Tags(turn=1).as_headers() == {"X-AgentKV-Turn": "1"}


@pytest.mark.parametrize(
    ("header", "text"),
    [
        *(("X-AgentKV-Job", text) for text in ("x" * 257, "%FF", "\xe9")),
        ("X-AgentKV-Parent", "x" * 257),
        *(("X-AgentKV-Last-Step", text) for text in ("maybe", "2")),
        *(("X-AgentKV-Turn", text) for text in ("0", "-1", "1.0", "one", "true", "9" * 5000)),
        *(("X-AgentKV-Turn", text) for text in ("1_0", "[" * 50_000, "null", str(MAX_TURN + 1))),
        ("X-AgentKV-Expected-Turns", "0"),
        ("X-AgentKV-Last-Tool", "x" * 4097),
        *(("X-AgentKV-Last-Tool-S", text) for text in ("nan", "NaN", "1e999", "-0.1", "1 s")),
        ("X-AgentKV-Max-TTL-S", "5m"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_wrong_header_is_refused_by_name(header: str, text: str) -> None:
    """The checks of the fields hold for headers, and the error names the header."""
    assert refused(parse_header_tags, {"accept": "*/*", header.lower(): text}) == header


@pytest.mark.parametrize(
    ("header", "text", "tags"),
    [
        ("x-agentkv-job", "ty%C3%B6", Tags(job_id="työ")),
        ("x-agentkv-job", "ty\xc3\xb6", Tags(job_id="työ")),  # UTF-8 that was not encoded
        ("x-agentkv-job", "50%", Tags(job_id="50%")),
        ("x-agentkv-last-step", "1", Tags(is_last_step=True)),
        ("x-agentkv-last-tool-s", "2", Tags(last_tool_s=2.0)),
        ("x-agentkv-job", "", Tags()),
    ],
)
def test_each_header_sets_its_tag(header: str, text: str, tags: Tags) -> None:
    """Our headers are decoded, and an empty one counts as absent."""
    headers = {header: text, "accept": "*/*"}
    assert parse_header_tags(headers) == tags
    assert header_fields(headers) == tags.as_fields()


def test_what_strangers_send_is_used_as_far_as_it_can_be() -> None:
    """Wrong fields are passed over one by one, and an id of any length has one of 256 at most."""
    token, passed_over = "eyJ" + "x" * 900, list[TagError]()
    sent = {"job_id": token, "parent_job_id": 7, "turn": {"of": "a game"}, "expected_turns": 4}
    assert read_tags(sent, passed_over) == Tags(job_id=bounded_id(token), expected_turns=4)
    assert [error.field for error in passed_over] == ["parent_job_id", "turn"]
    assert bounded_id(token) != bounded_id(token + "y")
    assert len(bounded_id("\ud800" * 300)) <= 256
    assert bounded_id("x" * 256) == "x" * 256


def test_a_tag_error_is_a_value_error_and_can_be_pickled() -> None:
    """A TagError crosses process borders, and callers can catch it as a ValueError."""
    error = TagError("turn", 0, "more")
    assert isinstance(error, ValueError)
    assert isinstance(error, AgentKVError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
