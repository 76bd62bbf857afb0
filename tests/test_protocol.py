"""The wire fields: the values that are accepted, and how a refusal reads."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
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
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: object) -> None:
    """The error names the field, clips the value, and says what is allowed."""
    assert refused(parse_tags, {**ALL_TAGS, field: value}) == field


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
    ids=lambda value: repr(value)[:20],
)
def test_the_limits_themselves_are_accepted(field: str, value: Any) -> None:
    """The largest and the smallest allowed value of a field pass."""
    assert getattr(parse_tags({field: value}), field) == value


def test_numbers_are_flags_only_on_request() -> None:
    """vllm_xargs turns true into 1, so its reader accepts 0 and 1; the body's does not."""
    assert parse_tags({"is_last_step": 1}, flags_as_numbers=True).is_last_step is True
    assert parse_tags({"is_last_step": 0.0}, flags_as_numbers=True).is_last_step is False
    with pytest.raises(TagError):
        parse_tags({"is_last_step": 2}, flags_as_numbers=True)


@settings(deadline=None)  # a loaded machine is no failure
@given(st.dictionaries(st.sampled_from(TAG_FIELDS), json_values))
def test_any_json_is_either_accepted_or_refused_in_words(fields: dict[str, Any]) -> None:
    """No JSON value makes the parser fail otherwise, and accepted values can be encoded."""
    try:
        accepted = parse_tags(fields).as_fields()
    except TagError as error:
        str(error).encode()
    else:
        json.dumps(accepted, allow_nan=False, ensure_ascii=False).encode()


@settings(deadline=None)
@given(json_values)
def test_any_json_as_a_tool_event_is_accepted_or_refused(body: Any) -> None:
    """The body of the tool route can be any JSON: without a known state it is refused."""
    if isinstance(body, dict) and body.get("state") in ("started", "finished"):
        assert parse_tool_event(body).state == body["state"]
    else:
        assert refused(parse_tool_event, body) in ("body", "state")


@pytest.mark.parametrize(
    "change",
    [
        {"state": "running"},
        {"state": None},
        {"state": ["started"]},
        {"duration_s": -1},
        {"duration_s": math.nan},
        {"command": "x" * (MAX_COMMAND_CHARS + 1)},
        {"tool": ""},
        {"turn": 0},
    ],
    ids=lambda change: repr(change)[:30],
)
def test_a_wrong_tool_event_is_refused_by_name(change: dict[str, Any]) -> None:
    """The error names the wrong field of the event."""
    assert refused(parse_tool_event, {**EVENT, **change}) == next(iter(change))


def test_a_megabyte_of_command_is_accepted() -> None:
    """A long heredoc is a command like any other."""
    command = "x" * MAX_COMMAND_CHARS
    assert parse_tool_event({"state": "started", "command": command}).command == command


@pytest.mark.parametrize(("header", "tag"), SESSION_HEADERS.items())
def test_each_session_header_sets_its_tag(header: str, tag: str) -> None:
    """The session headers of coding agents become tags."""
    value, expected = ("true", True) if tag == "is_last_step" else ("abc", "abc")
    assert fields_from_headers({header: value, "accept": "*/*"}) == {tag: expected}


def test_the_first_header_of_the_table_counts() -> None:
    """Of several headers for one tag, vLLM's own comes first."""
    assert fields_from_headers({"session-id": "b", "x-session-id": "a"}) == {"job_id": "a"}


def test_a_flag_header_with_other_text_is_refused() -> None:
    """A flag header that is neither true nor false is an error, not a false flag."""
    raw = fields_from_headers({"x-dynamo-session-final": "maybe"})
    assert refused(parse_tags, raw) == "is_last_step"


def test_a_tag_error_is_a_value_error_and_can_be_pickled() -> None:
    """A TagError crosses process borders, and callers can catch it as a ValueError."""
    error = TagError("turn", 0, "more")
    assert isinstance(error, ValueError)
    assert isinstance(error, AgentKVError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
