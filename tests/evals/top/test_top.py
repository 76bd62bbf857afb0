"""`agentkv top` at 80 by 24, driven by keys, before a scripted stream of snapshots."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import DataTable

from agentkv.cli import main
from agentkv.errors import AgentKVServerError
from agentkv.evals import top as command
from agentkv.evals.board import Board, LiveFeed, ShownJob
from agentkv.evals.top import COLUMNS, Top

SIZE = (80, 24)


def job(job_id: str, **fields: Any) -> dict[str, Any]:
    """A job of a snapshot."""
    return {
        **{"job_id": job_id, "parent_job_id": None, "state": "held", "for_s": 1.0, "why": None},
        **{"held_back": False, "turn": 2, "expected_turns": None, "tokens": 100, "blocks": 4},
        **{"tool": "ls", "command": "ls -la", "is_tool_running": False, "ttl_left_s": 1.0},
        **{"predicted_speed": "fast", "predicted_p50_s": 0.1, "predicted_p90_s": 2.0},
        **{"took_s": 61.0, "prompt_tokens": 1000, "hit_tokens": 820},
        **fields,
    }


def engine(number: int = 0, *jobs: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """An engine's entry of a snapshot."""
    pool = {"blocks": 100, "block_tokens": 32, "running": 50, "held": 25, "cached": 10, "free": 15}
    stats = {
        "is_under_pressure": True,
        "savings": {
            **{"compared_tokens": 20_000, "compared_hit_tokens": 16_400},
            **{"stock_hit_tokens": 8_200, "gained_engine_s": 3.5},
        },
        "predictions_total": {"to_p50": 5, "to_p90": 4, "over_p90": 1},
        "finished_turns_total": {"first": 2, "later": 4},
        "ttft_seconds_total": {"first": 4.0, "later": 2.0},
        "turn_seconds_total": {"first": 10.0, "later": 12.0},
        "output_tokens_total": {"first": 60, "later": 120},
        "num_waiting": 1,
    }
    return {
        **{"engine": number, "policy": "agentkv", "at_s": 60.0, "pool": pool, "stats": stats},
        **{"num_jobs": len(jobs), "jobs": list(jobs), "held_by_others": 0},
        **{"events": [], "events_left_out": 0},
        **{"model": "org/tiny", "host": "box", "version": "0.1.0", "vllm_version": "0.33.0"},
        **fields,
    }


JOBS = (
    job("build", state="tool", for_s=95.0, command="make -j8", tokens=9_000),
    job("fix-parser", state="waiting", held_back=True, why="9 blocks expected at the peak, 3 fit"),
    job("writer", state="running", turn=7, expected_turns=30, tokens=30_000),
)
LET_GO = {
    **{"event": "unpinned", "at_s": 50.0, "text": "let go after 2 s: expired", "reason": "expired"}
}
EVENTS = (
    {"event": "arrival", "at_s": 40.0, "job_id": "build", "text": "turn 3 arrives, 9,000 tokens"},
    {**LET_GO, "job_id": "build"},
)


class Script:
    """A server that sends the snapshots it is given, and then keeps the stream open."""

    def __init__(self, *snapshots: list[dict[str, Any]], status: int = 200) -> None:
        self._snapshots = asyncio.Queue[list[dict[str, Any]] | None]()
        self._status = status
        for snapshot in snapshots:
            self.send(snapshot)

    def send(self, engines: list[dict[str, Any]] | None) -> None:
        """Send one more; None ends the stream."""
        self._snapshots.put_nowait(engines)

    def feed(self) -> LiveFeed:
        return LiveFeed("http://server:8000/v1", None, transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/agentkv/live"
        if self._status != 200:
            return httpx.Response(self._status, json={"error": {"message": "too many streams"}})
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, content=self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        while (engines := await self._snapshots.get()) is not None:
            data = json.dumps({"interval_s": 1.0, "engines": engines})
            yield f"event: snapshot\ndata: {data}\n\n".encode()


def text_of(app: App[None]) -> str:
    """What the screen shows, piece by piece."""
    pieces = re.findall(r"<text[^>]*>(.*?)</text>", app.export_screenshot())
    return html.unescape(" ".join(pieces)).replace("\xa0", " ")


async def shows(pilot: Pilot[None], condition: Callable[[str], bool]) -> str:
    """The screen once it is as wanted; fails after ten seconds."""
    async with asyncio.timeout(10.0):
        while not condition(text := text_of(pilot.app)):
            await pilot.pause()
    return text


@pytest.mark.asyncio
async def test_the_whole_picture_fits_in_80_by_24() -> None:
    """Server, pool, jobs with state, turn and tool, times, savings, calibration and decisions."""
    script = Script([engine(0, *JOBS, events=list(EVENTS))])
    async with Top(script.feed()).run_test(size=SIZE) as pilot:
        text = await shows(pilot, lambda text: "build" in text and "Quit" in text)
    for piece in (
        *("tiny on box", "up 60s", "memory is short", "running 50% held 25% cached 10%"),
        *("1 running, 1 waiting, 1 tool  queue 1", "3.0 tokens/s"),
        *("first token 0.5s (first turns 2.0s)  turn 3.0s (first turns 5.0s)",),
        *(
            "later turns 82% cached (stock about 41%, 3.5s won)",
            "tools 90% within p90",
        ),
        *("make -j8", "waiting 1.0s", "7/30", "30,000", "82%", "0.1s..2.0s", "tool 95s", "61s"),
        *("let go after 2 s: expired", "Quit"),
    ):
        assert piece in text, piece


@pytest.mark.parametrize(("size", "num_columns"), [((50, 20), 5), ((80, 24), 8), ((200, 50), 9)])
@pytest.mark.asyncio
async def test_no_column_is_cut_and_no_row_is_wasted(
    size: tuple[int, int], num_columns: int
) -> None:
    """With more jobs than fit and the longest texts, the columns that are shown fit next to the
    scroll bar; with few jobs decisions take the rows that jobs leave."""
    long = [job(f"{index}-{'j' * 40}", state="waiting", command="x" * 90) for index in range(60)]
    lines = [{**EVENTS[1], "at_s": float(at), "job_id": f"job-{at}"} for at in range(60)]
    script = Script([engine(0, *long, events=lines)])
    async with Top(script.feed()).run_test(size=size) as pilot:
        await shows(pilot, lambda text: "0-" in text or "jjj" in text)
        table = pilot.app.query_one(DataTable)
        assert len(table.ordered_columns) == num_columns
        assert [str(each.label) for each in table.ordered_columns] == [
            name for name, _ in COLUMNS[:num_columns]
        ]
        assert table.max_scroll_x == 0
        script.send([engine(0, *JOBS, at_s=61.0)])
        # the rows of jobs are drawn before the decisions move up
        num_decisions = size[1] - len(JOBS) - 8
        await shows(
            pilot,
            lambda text: (
                "writer" in text and len(set(re.findall(r"job-\d+", text))) == num_decisions
            ),
        )


@pytest.mark.asyncio
async def test_jobs_that_are_over_and_one_line_for_a_hold() -> None:
    """A job that ended keeps its time and hit rate; a hold is one line from its start to its end, a
    job's last hold none."""
    held = {"event": "pinned", "at_s": 1.0, "text": "holds 9 blocks for up to 21 s"}
    decided = {"event": "decision", "at_s": 1.1, "text": "holds 9 blocks while `ls` runs"}
    back = {**LET_GO, "at_s": 2.0, "reason": "returned", "text": "its next turn came after 1 s"}
    last = {**LET_GO, "at_s": 4.0, "reason": "released"}
    end = {"event": "closed", "at_s": 4.0, "text": "over after 7 turns", "turns": 7}
    end |= {"reason": "released", "took_s": 33.0, "prompt_tokens": 100, "hit_tokens": 37}
    events = [{**each, "job_id": "done"} for each in (held, decided, back, held, last, end)]
    app = Top(Script([engine(0, *JOBS, events=events)]).feed())
    async with app.run_test(size=(140, 30)) as pilot:
        text = await shows(pilot, lambda text: "writer" in text)
        assert [line.text for line in app.board.lines] == [
            "holds 9 blocks while `ls` runs; its next turn came after 1 s",
            "over after 7 turns",
        ]
        for piece in ("1 over", "33s", "37%", "9 blocks expected at the peak, 3 fit"):
            assert piece in text, piece


@pytest.mark.asyncio
async def test_keys_sort_and_filter_the_jobs() -> None:
    """By state the running job leads, by tokens the longest; a filter leaves what matches."""
    app = Top(Script([engine(0, *JOBS)]).feed())
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, lambda text: "writer" in text)
        assert [key.job_id for key in app._shown] == ["writer", "fix-parser", "build"]
        await pilot.press("s")
        assert [key.job_id for key in app._shown] == ["writer", "build", "fix-parser"]
        await pilot.press("slash", *"make", "enter")
        assert [key.job_id for key in app._shown] == ["build"]
        await pilot.press("escape")
        assert len(app._shown) == 3


@pytest.mark.asyncio
async def test_a_job_is_selected_for_its_turns_and_reasons() -> None:
    """Enter shows what happened to the job under the cursor, which stays on it; Esc leads back."""
    script = Script([engine(0, *JOBS, events=list(EVENTS))])
    app = Top(script.feed())
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, lambda text: "build" in text)
        await pilot.press("down", "down")
        script.send([engine(0, job("aaa", state="running"), *JOBS)])
        await shows(pilot, lambda text: "aaa" in text)
        assert app._shown[app.query_one(DataTable).cursor_row].job_id == "build"
        await pilot.press("enter")
        text = await shows(pilot, lambda text: "turn 3 arrives, 9,000 tokens" in text)
        assert "let go after 2 s: expired" in text
        await pilot.press("escape")
        await shows(pilot, lambda text: "make -j8" in text)


@pytest.mark.asyncio
async def test_ids_that_begin_alike_keep_their_ends() -> None:
    """In 80 columns an id that is too long loses its beginning, in table and decisions."""
    run = [f"6ab8834f-swebench-{number:04}" for number in range(2)]
    script = Script([engine(0, *map(job, run), events=[{**LET_GO, "job_id": run[1]}])])
    async with Top(script.feed()).run_test(size=SIZE) as pilot:
        text = await shows(pilot, lambda text: "-0000" in text)
        assert "-0001" in text
        assert "…34f-swebench-0001  let go" in text


@pytest.mark.asyncio
async def test_a_server_that_goes_away_is_named_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The jobs stay on the screen below the message, and the next stream goes on."""
    monkeypatch.setattr(command, "RETRY_S", 0.01)
    script = Script([engine(0, *JOBS)], None)
    async with Top(script.feed()).run_test(size=SIZE) as pilot:
        text = await shows(pilot, lambda text: "has ended the stream; trying again" in text)
        assert "writer" in text
        script.send([engine(0, job("after"))])
        await shows(pilot, lambda text: "after" in text and "trying again" not in text)


@pytest.mark.asyncio
async def test_engines_are_side_by_side() -> None:
    """Each of several engines has its bar, and its jobs its number."""
    script = Script([engine(0, job("a")), engine(1, job("a", state="running"))])
    async with Top(script.feed()).run_test(size=SIZE) as pilot:
        text = await shows(pilot, lambda text: "0:a" in text and "1:a" in text)
        assert text.count("held 25%") == 2
        assert "later turns 82% cached (stock about 41%, 7.0s won)" in text


@pytest.mark.parametrize(
    ("status", "advice"),
    [(404, "--scheduling-policy agentkv"), (401, "--api-key"), (429, "too many streams")],
)
@pytest.mark.asyncio
async def test_a_refusal_says_what_to_do(status: int, advice: str) -> None:
    """A stock policy, a missing key, too many viewers: each has its own message."""
    with pytest.raises(AgentKVServerError, match=re.escape(advice)):
        await anext(Script(status=status).feed().snapshots())


def test_a_server_that_does_not_answer_ends_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1, and one line with the address and what to do; without a terminal, another one."""
    assert main(["top", "--url", "http://127.0.0.1:9"]) == 1
    assert "needs a terminal" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["top", "--url", "http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err


def test_a_row_that_comes_after_the_end_is_ignored() -> None:
    """Textual may highlight a row once the screens of a program that ends are gone."""
    Top(LiveFeed("http://127.0.0.1:9", None)).on_data_table_row_highlighted()


def test_events_that_are_sent_twice_are_kept_once() -> None:
    """A further viewer of the same client makes the server send the last two minutes again."""
    board = Board()
    for now_s in (60.0, 61.0):
        board.update({"engines": [engine(0, at_s=now_s, events=list(EVENTS))]})
    assert len(board.events.get(ShownJob(0, "build"))) == 2
    board.update({"engines": [engine(0, at_s=45.0, events=[{**EVENTS[0], "at_s": 44.0}])]})
    assert len(board.events.get(ShownJob(0, "build"))) == 3
