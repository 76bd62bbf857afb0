"""`agentkv top`: a server's memory, jobs and decisions in the terminal, as they change.

Reads the server's stream of snapshots (docs/reference/routes.md) and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import httpx
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from agentkv.command_line import DONE, FAILED, command_parser, url
from agentkv.errors import AgentKVServerError
from agentkv.protocol import routing_headers
from agentkv.visible import visible, visible_values

SILENCE_S = 30.0
"""A server that is alive sends a snapshot a second; after this much silence it is given up."""
MAX_EVENTS_OF_JOB = 200
MAX_JOBS_REMEMBERED = 1000

Entry = Mapping[str, Any]
"""A job or an event of a snapshot."""


class ShownJob(NamedTuple):
    """A job on one engine, as the screen knows it."""

    engine: int
    job_id: str


class LiveFeed:
    """The stream of one server, with or without `/v1` in its URL; `transport` is for tests."""

    def __init__(
        self, url: str, api_key: str | None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.root_url, self._transport = url.rstrip("/").removesuffix("/v1"), transport
        self.headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    async def snapshots(self) -> AsyncIterator[dict[str, Any]]:
        """Yield snapshots as they come. Raises AgentKVServerError when there are no more, with
        what happened and what to do."""
        timeout = httpx.Timeout(SILENCE_S)
        try:
            async with (
                httpx.AsyncClient(
                    headers=self.headers, timeout=timeout, transport=self._transport
                ) as client,
                client.stream("GET", f"{self.root_url}/v1/agentkv/live") as answer,
            ):
                await self._require_stream(answer)
                async for name, data in _events(answer):
                    if name == "gone":
                        raise AgentKVServerError(f"{self.root_url}: {data.get('problem')}")
                    yield data
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AgentKVServerError(
                f"{self.root_url} does not answer ({type(error).__name__}: {error}): start the "
                "server, or give its address with --url"
            ) from error
        raise AgentKVServerError(f"{self.root_url} has ended the stream")

    async def _require_stream(self, answer: httpx.Response) -> None:
        if answer.is_success and "event-stream" in answer.headers.get("content-type", ""):
            return
        status = answer.status_code
        if status in (401, 403):
            problem = f"HTTP {status}: give the server's key with --api-key"
        elif status == 404 or answer.is_success:
            problem = (
                "it has no /v1/agentkv/live. Its policy is a stock one (fcfs or priority), or its "
                "agentkv is older than this one: start it with --scheduling-policy agentkv or "
                "continuum"
            )
        else:
            await answer.aread()
            problem = f"HTTP {status}: {visible(answer.text[:200])}"
        raise AgentKVServerError(f"{self.root_url} answers, but {problem}")


async def _events(answer: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The server-sent events of a response: name and data."""
    name = ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value, object_hook=visible_values)


class Board:
    """The newest snapshot, and the events of all jobs since the stream was opened."""

    def __init__(self) -> None:
        self.engines: list[dict[str, Any]] = []
        self.log: deque[tuple[ShownJob, Entry]] = deque(maxlen=MAX_EVENTS_OF_JOB)
        """What happened last, to any job."""
        self.events: dict[ShownJob, deque[Entry]] = {}
        """What happened to each job, as far as it was seen."""
        self._seen_s: dict[int, float] = {}

    def update(self, snapshot: Mapping[str, Any]) -> None:
        """Take a snapshot; events that were in an earlier one are passed over."""
        self.engines = list(snapshot.get("engines", ()))
        for engine in self.engines:
            number, now_s = int(engine["engine"]), float(engine["at_s"])
            seen_s = self._seen_s.get(number, -1.0)
            seen_s = -1.0 if now_s < seen_s else seen_s  # the server was started again
            for event in engine["events"]:
                if event["at_s"] > seen_s:
                    self._add(ShownJob(number, event["job_id"]), event)
            self._seen_s[number] = now_s

    def _add(self, key: ShownJob, event: Entry) -> None:
        events = self.events.pop(key, None) or deque(maxlen=MAX_EVENTS_OF_JOB)
        events.append(event)
        self.events[key] = events  # the last active one comes last
        if len(self.events) > MAX_JOBS_REMEMBERED:
            del self.events[next(iter(self.events))]
        self.log.append((key, event))

    @property
    def jobs(self) -> dict[ShownJob, dict[str, Any]]:
        """The jobs of the newest snapshot."""
        return {
            ShownJob(int(engine["engine"]), job["job_id"]): job
            for engine in self.engines
            for job in engine["jobs"]
        }

    def total(self, group: str, name: str) -> float:
        """A number of a group of `stats`, added up over engines; 0 where there is none."""
        groups = ((engine.get("stats") or {}).get(group, {}) for engine in self.engines)
        return float(sum(numbers.get(name, 0) for numbers in groups))


RETRY_S = 2.0
POOL = (("running", "█", "blue"), ("held", "█", "green"), ("cached", "▒", "bright_black"))
"""Kinds of blocks in the pool's bar, with their character and colour; the rest is free."""
STATES = ("running", "waiting", "tool", "held", "evicted")
COLOURS = {"running": "blue", "waiting": "red", "tool": "green", "held": "green"}
DECISIONS = frozenset({"decision", "unpinned", "held", "due", "evicted", "trimmed", "preempted"})
MAX_BARS = 3
NUM_DECISIONS = 4

COLUMNS = (
    *(("job", 20), ("state", 10), ("turn", 7), ("tokens", 9), ("tool", 15)),
    *(("for", 8), ("predicted", 11)),
)
"""Columns and their widths in a terminal of 80 characters; in a wider one job and tool grow."""

SORTS: Mapping[str, Callable[[ShownJob, Entry], Any]] = {
    "state": lambda key, job: (STATES.index(job["state"]), -job["for_s"]),
    "tokens": lambda key, job: -job["tokens"],
    "for": lambda key, job: -job["for_s"],
    "turn": lambda key, job: -job["turn"],
    "job": lambda key, job: key,
}


def main(argv: Sequence[str]) -> int:
    """0: shown until the user quits; 1: the server cannot be watched."""
    parser = command_parser("top", __doc__)
    parser.add_argument("--url", type=url, default="http://127.0.0.1:8000", help="the server")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument("--job", help="behind a router, watch the server that has this job")
    options = parser.parse_args(argv)
    if not sys.stdout.isatty():
        print("agentkv top: needs a terminal; GET /v1/agentkv/live has the data", file=sys.stderr)
        return FAILED
    feed = LiveFeed(options.url, options.api_key)
    feed.headers |= routing_headers(options.job)
    try:
        asyncio.run(_first(feed))
    except AgentKVServerError as error:
        print(f"agentkv top: {error}", file=sys.stderr)
        return FAILED
    Top(feed).run()
    return DONE


async def _first(feed: LiveFeed) -> None:
    """Wait for one snapshot, so that a wrong address is said before the screen is taken."""
    snapshots = feed.snapshots()
    await anext(snapshots)
    await snapshots.aclose()  # type: ignore[attr-defined]


class JobScreen(ModalScreen[None]):
    """The turns of one job, and why each thing was done, newest last."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "Back")]
    CSS = "JobScreen { align: center middle; } #pane { border: round green; }"

    def __init__(self, board: Board, key: ShownJob) -> None:
        super().__init__()
        self._board, self._key = board, key

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="pane"):
            yield Static(id="events")
        yield Footer()

    def on_mount(self) -> None:
        self.show()
        self.set_interval(1.0, self.show)

    def show(self) -> None:
        """Bring the events up to date, and stay at their end."""
        pane = self.query_one("#pane")
        events = self._board.events.get(self._key, ())
        job = self._board.jobs.get(self._key)
        state = "gone"
        if job is not None:
            state = f"{job['state']}: {job['why']}" if job["why"] else job["state"]
        pane.border_title = f"{self._key.job_id}  {state}"[: max(10, self.size.width - 6)]
        lines = [f"{event['at_s']:8.1f} {event['text']}" for event in events]
        is_at_end = pane.max_scroll_y - pane.scroll_y <= 1
        text = "\n".join(lines) or "Nothing has happened to it since the start of top."
        self.query_one("#events", Static).update(Text(text))
        if is_at_end:
            pane.scroll_end(animate=False)


class Top(App[None]):
    """The screen; one worker reads the stream and shows each snapshot."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "clear", "Clear", show=False),
    ]
    CSS = """
    #head { height: auto; }
    #jobs { height: 1fr; }
    #find { display: none; height: 1; border: none; }
    #decisions { height: 5; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, feed: LiveFeed) -> None:
        super().__init__(ansi_color=True)
        self.board = Board()
        self._feed = feed
        self._sort = next(iter(SORTS))
        self._filter = ""
        self._problem = ""
        self._shown: list[ShownJob] = []

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield DataTable[Text](id="jobs", cursor_type="row", cell_padding=0)
        yield Input(id="find", placeholder="part of a job, state or tool; Enter or Esc")
        yield Static(id="decisions")
        yield Footer()

    def on_mount(self) -> None:
        self._set_columns()
        self.query_one(DataTable).focus()
        self._watch()

    @work(exclusive=True)
    async def _watch(self) -> None:
        while True:
            try:
                async for snapshot in self._feed.snapshots():
                    self._problem = ""
                    self.board.update(snapshot)
                    self.refresh_screen()
            except AgentKVServerError as error:
                self._problem = f"{error}; trying again"
                self.refresh_screen()
            await asyncio.sleep(RETRY_S)

    # What the keys do

    def action_sort(self) -> None:
        names = list(SORTS)
        self._sort = names[(names.index(self._sort) + 1) % len(names)]
        self.refresh_screen()

    def action_filter(self) -> None:
        find = self.query_one(Input)
        find.display = True
        find.focus()

    def action_clear(self) -> None:
        self.query_one(Input).value = ""
        self.on_input_submitted()

    def on_input_changed(self, change: Input.Changed) -> None:
        self._filter = change.value.lower()
        self.refresh_screen()

    def on_input_submitted(self) -> None:
        self.query_one(Input).display = False
        self.query_one(DataTable).focus()

    def on_data_table_row_selected(self, selected: DataTable.RowSelected) -> None:
        if 0 <= selected.cursor_row < len(self._shown):
            self.push_screen(JobScreen(self.board, self._shown[selected.cursor_row]))

    def on_resize(self) -> None:
        self._set_columns()
        self.refresh_screen()

    # What is shown

    def _set_columns(self) -> None:
        table = self.screen_stack[0].query_one(DataTable)
        table.clear(columns=True)
        more = max(0, self.size.width - sum(width for _, width in COLUMNS))
        grown = {"job": more - more // 2, "tool": more // 2}
        for name, width in COLUMNS:
            table.add_column(name, width=width + grown.get(name, 0), key=name)

    def refresh_screen(self) -> None:
        """Show the board as it is now; the cursor stays on its job."""
        screen = self.screen_stack[0]
        screen.query_one("#head", Static).update(self._head())
        screen.query_one("#decisions", Static).update(self._decisions())
        table = screen.query_one(DataTable)
        row, top = table.cursor_row, table.scroll_y
        at = self._shown[row] if row < len(self._shown) else None
        jobs = self.board.jobs
        found = [key for key, job in jobs.items() if self._filter in _searched(key, job)]
        self._shown = sorted(found, key=lambda key: SORTS[self._sort](key, jobs[key]))
        table.clear()
        widths = [column.width - 1 for column in table.ordered_columns]
        for key in self._shown:
            job_id, *cells = self._cells(key, jobs[key])
            row_cells = [Text(_end(job_id, widths[0]))]
            row_cells += [Text(text[:w]) for text, w in zip(cells, widths[1:], strict=True)]
            row_cells[1].stylize(COLOURS.get(jobs[key]["state"], ""))
            table.add_row(*row_cells)
        if at in self._shown:
            table.move_cursor(row=self._shown.index(at), animate=False, scroll=False)
        table.scroll_y = top

    def _cells(self, key: ShownJob, job: Entry) -> tuple[str, ...]:
        is_one = len(self.board.engines) == 1
        job_id = key.job_id if is_one else f"{key.engine}:{key.job_id}"
        p50, p90 = job["predicted_p50_s"], job["predicted_p90_s"]
        expected = f"/{job['expected_turns']}" if job["expected_turns"] else ""
        return (
            job_id,
            "held back" if job["held_back"] else job["state"],
            f"{job['turn']}{expected}",
            f"{job['tokens']:,}",
            job["command"] or job["tool"] or "",
            _seconds(job["for_s"]),
            "" if p50 is None else f"{_seconds(p50)}..{_seconds(p90)}",
        )

    def _head(self) -> Text:
        board, engines = self.board, self.board.engines
        if not engines:
            return Text(self._problem or f"waiting for {self._feed.root_url}")
        is_short = any(engine["stats"].get("is_under_pressure") for engine in engines)
        waiting = sum(job["state"] == "waiting" for job in board.jobs.values())
        num_jobs = sum(engine["num_jobs"] for engine in engines)
        lines = [
            Text.assemble(
                (f"{self._feed.root_url.partition('://')[2]} {engines[0]['policy']}  ", "bold"),
                f"{num_jobs:,} jobs, {waiting:,} wait  ",
                ("memory is short" if is_short else "no pressure", "red" if is_short else ""),
                f"  by {self._sort}" + (f", only {self._filter!r}" if self._filter else ""),
            )
        ]
        lines += [self._bar(engine) for engine in engines[:MAX_BARS]]
        if len(engines) > MAX_BARS:
            lines.append(Text(f"and {len(engines) - MAX_BARS} more engines"))
        lines.append(Text(self._problem, style="red") if self._problem else self._savings())
        for line in lines:
            line.truncate(max(1, self.size.width), overflow="ellipsis")
        return Text("\n").join(lines)

    def _bar(self, engine: Mapping[str, Any]) -> Text:
        pool = engine["pool"]
        label = f"{engine['engine']} " if len(self.board.engines) > 1 else ""
        shares = {name: pool[name] / max(1, pool["blocks"]) for name, _, _ in POOL}
        legend = " ".join(f"{name} {share:.0%}" for name, share in shares.items())
        width = max(10, self.size.width - len(label) - len(legend) - 2)
        bar, done, total = Text(label), 0, 0.0
        for name, character, colour in POOL:
            total += shares[name]
            cells = round(total * width) - done
            bar.append(character * cells, style=colour)
            done += cells
        bar.append("·" * (width - done))
        return bar.append(f" {legend}")

    def _savings(self) -> Text:
        board, names = self.board, ("compared_tokens", "compared_hit_tokens", "stock_hit_tokens")
        prompts, hits, stock = (board.total("savings", name) for name in names)
        within = [board.total("predictions_total", name) for name in ("to_p50", "to_p90")]
        tools = sum(within) + board.total("predictions_total", "over_p90")
        text = f"hits {hits / (prompts or 1):.0%}, stock about {stock / (prompts or 1):.0%}"
        text += f" ({_seconds(board.total('savings', 'gained_engine_s'))})"
        if tools:
            shares = within[0] / tools, sum(within) / tools
            text += f"  {tools:,.0f} tools: {shares[0]:.0%} within p50, {shares[1]:.0%} within p90"
        return Text(text)

    def _decisions(self) -> Text:
        latest = [entry for entry in self.board.log if entry[1]["event"] in DECISIONS]
        width = max(20, self.size.width)
        lines = [Text("─ decisions ".ljust(width, "─"), style="bright_black")]
        for key, event in latest[-NUM_DECISIONS:]:
            line = Text(f"{_end(key.job_id, 18):18} {event['text']}")
            line.truncate(width, overflow="ellipsis")
            lines.append(line)
        return Text("\n").join(lines)


def _searched(key: ShownJob, job: Entry) -> str:
    return " ".join(filter(None, (key.job_id, job["state"], job["tool"], job["command"]))).lower()


def _end(text: str, width: int) -> str:
    """The end of a job's id: ids of one run mostly begin alike."""
    return text if len(text) <= width else f"…{text[1 - width :]}"


def _seconds(seconds: float) -> str:
    """A duration in up to five characters."""
    if seconds < 10.0:
        return f"{seconds:.1f}s"
    if seconds < 600.0:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 36_000.0 else f"{seconds / 3600:.0f}h"
