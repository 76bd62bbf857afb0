"""Commands that ask about one job reach its server through a router that goes by X-Session-ID."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from agentkv.errors import AgentKVServerError, InputError
from agentkv.evals.commands import explain, record
from tests.scripted_server import ScriptedServer


@pytest.mark.parametrize(
    ("main", "flags"),
    [
        (explain.main, ["é 1", "--url", "{url}"]),
        (record.main, ["{url}", "--job", "é 1"]),
    ],
    ids=["explain", "record"],
)
def test_a_question_about_a_job_goes_to_its_server(
    main: Callable[[list[str]], int], flags: list[str]
) -> None:
    """The header is the one that the job's own requests carry; other questions have none."""
    with ScriptedServer() as server:
        for words in (flags, [word for word in flags if word not in ("--job", "é 1")]):
            with suppress(
                AgentKVServerError, InputError
            ):  # it knows no job: that it was asked counts
                main([word.format(url=server.root_url) for word in words])
    asked = [request.headers.get("x-session-id") for request in server.requests]
    one_after_another = list(dict.fromkeys(asked))
    assert one_after_another == (["%C3%A9 1"] if main is explain.main else ["%C3%A9 1", None])
