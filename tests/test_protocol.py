"""The wire fields: what is accepted, what is refused, and how the refusal reads."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv import AgentKVError, TagError
from agentkv.protocol import (
    MAX_COMMAND_CHARS,
    MAX_DURATION_S,
    MAX_TURN,
    SESSION_HEADERS,
    TAG_FIELDS,
    Tags,
    fields_from_headers,
    parse_tags,
    parse_tool_event,
)

ALL_TAGS = {
    "job_id": "django-11451",
    "is_last_step": False,
    "parent_job_id": "root",
    "turn": 3,
    "expected_turns": 30,
    "last_tool": "pytest -x",
    "last_tool_s": 1.5,
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_every_field_survives_the_round_trip() -> None:
    """Parsing what as_fields gives back yields the same fields."""
    assert parse_tags(ALL_TAGS).as_fields() == ALL_TAGS
    assert tuple(ALL_TAGS) == TAG_FIELDS


def test_absent_and_null_fields_are_none() -> None:
    """A field that is missing, or null, was not sent; other keys do not matter."""
    assert parse_tags({"job_id": None, "temperature": 0.3}) == Tags()
    assert Tags().as_fields() == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", ""),
        ("job_id", "x" * 257),
        ("job_id", 7),
        ("job_id", ["a"]),
        ("job_id", "\ud800"),
        ("parent_job_id", "x" * 257),
        ("is_last_step", "true"),
        ("is_last_step", 1),
        ("turn", 0),
        ("turn", -1),
        ("turn", True),
        ("turn", 1.0),
        ("turn", "1"),
        ("turn", MAX_TURN + 1),
        ("expected_turns", 0),
        ("last_tool", ""),
        ("last_tool", "x" * 4097),
        ("last_tool_s", math.nan),
        ("last_tool_s", math.inf),
        ("last_tool_s", -0.1),
        ("last_tool_s", MAX_DURATION_S * 2),
        ("last_tool_s", "1.0"),
        ("last_tool_s", True),
        ("last_tool_s", 10**400),
    ],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: object) -> None:
    """The error names the field, shows the value and says what is allowed."""
    with pytest.raises(TagError) as caught:
        parse_tags({**ALL_TAGS, field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: got ")
    assert "allowed is" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", "x" * 256),
        ("job_id", "työ/#?%\n"),
        ("turn", MAX_TURN),
        ("last_tool", "x" * 4096),
        ("last_tool_s", 0),
        ("last_tool_s", MAX_DURATION_S),
    ],
)
def test_the_edges_are_accepted(field: str, value: Any) -> None:
    """The limits themselves are allowed."""
    assert getattr(parse_tags({field: value}), field) == value


def test_a_megabyte_of_job_id_gives_a_short_message() -> None:
    """The value in a message is clipped."""
    with pytest.raises(TagError) as caught:
        parse_tags({"job_id": "x" * 1_000_000})
    assert len(str(caught.value)) < 300


def test_numbers_are_flags_only_where_asked_for() -> None:
    """vllm_xargs turns true into 1; a body does not."""
    assert parse_tags({"is_last_step": 1}, flags_as_numbers=True).is_last_step is True
    assert parse_tags({"is_last_step": 0.0}, flags_as_numbers=True).is_last_step is False
    with pytest.raises(TagError):
        parse_tags({"is_last_step": 2}, flags_as_numbers=True)


@settings(deadline=None)  # a loaded machine is no failure
@given(st.dictionaries(st.sampled_from(TAG_FIELDS), json_values))
def test_any_json_is_either_accepted_or_refused_in_words(fields: dict[str, Any]) -> None:
    """No JSON value makes the parser fail otherwise, and what it accepts can be encoded."""
    try:
        accepted = parse_tags(fields).as_fields()
    except TagError as error:
        str(error).encode()
    else:
        json.dumps(accepted, allow_nan=False, ensure_ascii=False).encode()


@settings(deadline=None)
@given(json_values)
def test_any_json_as_a_tool_event_is_accepted_or_refused(body: Any) -> None:
    """The body of the tool route can be anything."""
    is_event = isinstance(body, dict) and body.get("state") in ("started", "finished")
    if is_event:
        assert parse_tool_event(body).state == body["state"]
        return
    with pytest.raises(TagError, match=r"^(body|state): got "):
        parse_tool_event(body)


def test_a_tool_event_keeps_its_fields() -> None:
    """State, tool, command, duration and turn arrive as sent."""
    body = {
        "state": "finished",
        "tool": "bash",
        "command": "ls",
        "duration_s": 0.25,
        "turn": 2,
    }
    assert parse_tool_event({**body, "unknown": []}).as_fields() == body


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"state": "running"}, "state"),
        ({"state": None}, "state"),
        ({"state": ["started"]}, "state"),
        ({"duration_s": -1}, "duration_s"),
        ({"duration_s": math.nan}, "duration_s"),
        ({"command": "x" * (MAX_COMMAND_CHARS + 1)}, "command"),
        ({"tool": ""}, "tool"),
        ({"turn": 0}, "turn"),
    ],
)
def test_a_wrong_tool_event_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    """The field at fault is named."""
    with pytest.raises(TagError) as caught:
        parse_tool_event({"state": "finished", **change})
    assert caught.value.field == field


def test_a_megabyte_of_command_is_accepted() -> None:
    """Long heredocs are commands too."""
    command = "x" * MAX_COMMAND_CHARS
    assert parse_tool_event({"state": "started", "command": command}).command == command


@pytest.mark.parametrize(("header", "tag"), SESSION_HEADERS.items())
def test_each_session_header_stands_for_its_tag(header: str, tag: str) -> None:
    """The headers that coding agents already send become tags."""
    value = "true" if tag == "is_last_step" else "abc"
    expected = True if tag == "is_last_step" else "abc"
    assert fields_from_headers({header: value, "accept": "*/*"}) == {tag: expected}


def test_vllms_own_header_goes_first() -> None:
    """Of several headers for one tag the first of the table counts."""
    assert fields_from_headers({"session-id": "b", "x-session-id": "a"}) == {"job_id": "a"}


def test_a_header_that_is_no_flag_is_refused_by_the_parser() -> None:
    """A flag header with other text is a wrong is_last_step, not a false one."""
    with pytest.raises(TagError, match="is_last_step"):
        parse_tags(fields_from_headers({"x-dynamo-session-final": "maybe"}))


def test_a_tag_error_is_a_value_error_and_can_be_pickled() -> None:
    """It crosses process borders and is caught by whoever expects a ValueError."""
    error = TagError("turn", 0, "more")
    assert isinstance(error, ValueError)
    assert isinstance(error, AgentKVError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
