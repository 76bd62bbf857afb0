"""`agentkv top`: a server's memory, jobs and decisions in the terminal, as they change.

Reads the server's stream of snapshots (docs/reference/routes.md) and nothing else.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

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

from .board import Board, Entry, LiveFeed, ShownJob, short_s

RETRY_S = 2.0
POOL = (("running", "█", "blue"), ("held", "█", "green"), ("cached", "▒", "bright_black"))
"""Kinds of blocks in the pool's bar, with their character and colour; the rest is free."""
STATES = ("running", "waiting", "tool", "held", "evicted", "over")
COLOURS = {"running": "blue", "waiting": "red", "tool": "green bold", "held": "green"}
MAX_BARS = 3
MIN_DECISIONS = 4

COLUMNS = (
    *(("job", 15), ("state", 13), ("turn", 6), ("time", 6), ("tokens", 8), ("cached", 7)),
    *(("tool", 12), ("usually", 11), ("why", 40)),
)
"""Columns and their least widths, the first eight those of 80 characters: a narrower terminal has
not the last ones, in a wider one job, tool and why grow."""
SCROLLBAR = 2

SORTS: Mapping[str, Callable[[ShownJob, Entry], Any]] = {
    "state": lambda key, job: (STATES.index(job["state"]), -job["for_s"]),
    "tokens": lambda key, job: -job["tokens"],
    "time": lambda key, job: -job["took_s"],
    "turn": lambda key, job: -_turns(job),
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
    #jobs { height: auto; scrollbar-size-horizontal: 0; }
    #find { display: none; height: 1; border: none; }
    #decisions { height: 1fr; }
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

    def on_data_table_row_highlighted(self) -> None:
        for screen in self.screen_stack[:1]:  # none is left while the program ends
            screen.query_one("#decisions", Static).update(self._decisions())

    def _set_columns(self) -> None:
        table = self.screen_stack[0].query_one(DataTable)
        table.clear(columns=True)
        left, shown = self.size.width - SCROLLBAR, {}
        for name, width in COLUMNS:
            if left < width:
                break
            shown[name], left = width, left - width
        for name, share in (("why", 0.6), ("tool", 0.4), ("job", 1.0)):
            more = int(left * share)
            if name in shown:
                shown[name], left = shown[name] + more, left - more
        for name, width in shown.items():
            table.add_column(name, width=width, key=name)

    def refresh_screen(self) -> None:
        """Show the board as it is now; the cursor stays on its job."""
        screen = self.screen_stack[0]
        head = self._head()
        screen.query_one("#head", Static).update(head)
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
            row_cells += [Text(text[:w]) for text, w in zip(cells, widths[1:], strict=False)]
            row_cells[1].stylize(COLOURS.get(jobs[key]["state"], ""))
            table.add_row(*row_cells)
        # all jobs that there is room for; decisions have the rest
        used = len(head.plain.splitlines()) + 2 + MIN_DECISIONS
        table.styles.height = max(3, min(len(self._shown) + 1, self.size.height - used))
        if at in self._shown:
            table.move_cursor(row=self._shown.index(at), animate=False, scroll=False)
        table.scroll_y = top
        self.call_after_refresh(self.on_data_table_row_highlighted)  # once their room is known

    def _cells(self, key: ShownJob, job: Entry) -> tuple[str, ...]:
        is_one = len(self.board.engines) == 1
        job_id = key.job_id if is_one else f"{key.engine}:{key.job_id}"
        p50, p90 = job["predicted_p50_s"], job["predicted_p90_s"]
        expected = f"/{job['expected_turns']}" if job["expected_turns"] else ""
        prompt_tokens = job["prompt_tokens"]
        return (
            job_id,
            job["state"] if job["state"] == "over" else f"{job['state']} {short_s(job['for_s'])}",
            f"{_turns(job)}{expected}",
            short_s(job["took_s"]),
            f"{job['tokens']:,}" if job["tokens"] else "",
            f"{job['hit_tokens'] / prompt_tokens:.0%}" if prompt_tokens else "",
            job["command"] or job["tool"] or "",
            "" if p50 is None else f"{short_s(p50)}..{short_s(p90)}",
            _why(job),
        )

    def _head(self) -> Text:
        board, engines = self.board, self.board.engines
        if not engines:
            return Text(self._problem or f"waiting for {self._feed.root_url}")
        first = engines[0]
        is_short = any(engine["stats"].get("is_under_pressure") for engine in engines)
        counts = dict.fromkeys(STATES, 0) | Counter(job["state"] for job in board.jobs.values())
        states = ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)
        more = sum(engine["num_jobs"] - len(engine["jobs"]) for engine in engines)
        waiting = sum(engine["stats"].get("num_waiting", 0) for engine in engines)
        lines = [
            Text.assemble(
                (f"{first['model'].rpartition('/')[2]} on {first['host']}", "bold"),
                f"  up {short_s(first['at_s'])}  policy {first['policy']}  "
                f"agentkv {first['version']}  vLLM {first['vllm_version']}",
            ),
            Text.assemble(
                f"{states or 'no jobs'}{f', {more:,} more' if more else ''}  ",
                f"queue {waiting:,}  ",
                ("memory is short" if is_short else "no pressure", "red" if is_short else ""),
                f"  by {self._sort}" + (f", only {self._filter!r}" if self._filter else ""),
            ),
        ]
        lines += [self._bar(engine) for engine in engines[:MAX_BARS]]
        if len(engines) > MAX_BARS:
            lines.append(Text(f"and {len(engines) - MAX_BARS} more engines"))
        lines.append(Text(board.speed()))
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
        gained_s = board.total("savings", "gained_engine_s")
        engine = f"{short_s(abs(gained_s))} {'lost' if gained_s < 0 else 'won'}"
        text = f"later turns {hits / (prompts or 1):.0%} cached (stock about "
        text += f"{stock / (prompts or 1):.0%}, {engine})"
        if tools:
            text += f"  tools {sum(within) / tools:.0%} within p90"
        return Text(text)

    def _decisions(self) -> Text:
        """Why the job under the cursor is as it is, and as many decisions as there is room for."""
        pane = self.screen_stack[0].query_one("#decisions", Static)
        row, width = self.query_one(DataTable).cursor_row, max(20, self.size.width)
        at = self._shown[row] if row < len(self._shown) else None
        job = self.board.jobs.get(at) if at is not None else None
        why = f"{at.job_id}: {_why(job)}" if at is not None and job and _why(job) else "decisions"
        lines = [Text(f"─ {why} ".ljust(width, "─"), style="bright_black")]
        for line in [*self.board.lines][-max(MIN_DECISIONS, pane.size.height - 1) :]:
            lines.append(Text(f"{_end(line.key.job_id, 18):18} {line.text}"))
            lines[-1].stylize("red" if line.is_loss else "", 19)
        for text in lines:
            text.truncate(width, overflow="ellipsis")
        return Text("\n").join(lines)


def _why(job: Entry) -> str:
    return str(job["text"] if job["state"] == "over" else job["why"] or "")


def _turns(job: Entry) -> int:
    return int(job["turns"] if job["state"] == "over" else job["turn"])


def _searched(key: ShownJob, job: Entry) -> str:
    return " ".join(filter(None, (key.job_id, job["state"], job["tool"], job["command"]))).lower()


def _end(text: str, width: int) -> str:
    """The end of a job's id: ids of one run mostly begin alike."""
    return text if len(text) <= width else f"…{text[1 - width :]}"
