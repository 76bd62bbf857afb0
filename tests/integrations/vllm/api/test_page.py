"""The live page in a real Chromium, before engines that answer from a table."""

import importlib.resources
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

from agentkv.integrations.vllm.api.live import PAGE_TYPES
from agentkv.integrations.vllm.api.middleware import AgentKVMiddleware
from agentkv.server.process import free_port
from tests.browser import PHONE, chromium, page_of, scrolls_sideways
from tests.integrations.vllm.api.fake_engine import make_app

__all__ = ["chromium"]

EVIL = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
STATES = ("running", "waiting", "tool", "pinned", "evicted")


def tokens(prompts: int, hits: int) -> dict[str, int]:
    """Those of later turns."""
    return {"later_prompt_tokens": prompts, "later_hit_tokens": hits}


def job(job_id: str, state: str, **fields: Any) -> dict[str, Any]:
    return {
        **{"job_id": job_id, "parent_job_id": None, "state": state, "for_s": 1.5, "why": None},
        **{"held_back": False, "turns": 3, "expected_turns": 9, "context_tokens": 4096},
        **{"last_tool": "pytest", "command": "pytest -q", "is_tool_running": False},
        **{"predicted_speed": "slow", "predicted_p50_s": 8.0, "predicted_p90_s": 30.0},
        **{
            "took_s": 33.0,
            "blocks": 12,
            "tokens": tokens(9000, 6300),
            "ttl_left_s": None,
            **fields,
        },
    }


def event(at_s: float, name: str, job_id: str, **details: Any) -> dict[str, Any]:
    return {"job_id": job_id, "event": name, "at_s": at_s, **details}


OVER = {"turns": 7, "took_s": 61.0, "tokens": tokens(1000, 800)}
MISS = {"tokens": 200, "why": "evicted", "advice": "run fewer jobs"}
TURNS = [
    {
        **{"turn": 1, "waited_s": 0.0, "ttft_s": 1.5, "took_s": 4.0, "prompt_tokens": 800},
        **{"hit_tokens": 0, "output_tokens": 50, "pin": "pins 26 blocks; let go", "gap_s": 2.0},
        **{"command": "pytest", "miss": None},
    },
    {
        **{"turn": 2, "waited_s": 0.5, "ttft_s": 2.0, "took_s": None, "prompt_tokens": 1000},
        **{"hit_tokens": 800, "output_tokens": None, "pin": None, "gap_s": None},
        **{"command": "pytest", "miss": MISS},
    },
]


class Engine:
    """One engine, whose clock moves by a second with each snapshot."""

    def __init__(self, number: int, jobs: Sequence[dict[str, Any]]) -> None:
        self.number = number
        self.jobs = list(jobs)
        self.at_s = 100.0
        self.events: list[dict[str, Any]] = []

    def live(self, viewer: str | None, seen_s: Mapping[str, float]) -> dict[str, Any]:
        self.at_s += 1.0
        events, self.events = self.events, []
        view = {
            "keys": [job["job_id"] for job in self.jobs],
            **{"num_jobs": len(self.jobs), "pinned_by_others": 5},
            "events": events,
        }
        pool = {"blocks": 100, "block_tokens": 32, "running": 40, "pinned": 25, "cached": 15}
        recomputed = {"pressure": 40, "diverged": 2}
        stats = {
            **{"is_under_pressure": True, "num_running": 2, "num_waiting": 3},
            "tokens": {**tokens(2000, 1500), "recomputed_tokens": recomputed},
            "finished_turns_total": {"first": 4, "later": 10},
            "ttft_seconds_total": {"first": 8.0, "later": 5.0},
            "turn_seconds_total": {"first": 16.0, "later": 30.0},
            "output_tokens_total": {"first": 400, "later": 605},
            "pin_ends_total": {"returned": 30, "expired": 10, "released": 6},
            "predictions_total": {"to_p50": 4, "to_p90": 4, "over_p90": 2},
        }
        server = {"model": "org/tiny", "host": "box", "version": "0.1.0", "vllm_version": "0.33.0"}
        return {
            **{"engine": self.number, "at_s": self.at_s, "policy": "agentkv", "stats": stats},
            **server,
            **{"pool": {**pool, "free": 20}, **view},
        }

    @property
    def answers(self) -> dict[str, Callable[..., Any]]:
        return {
            "live": self.live,
            "jobs": lambda viewer, keys: [job for job in self.jobs if job["job_id"] in keys],
            "keys_to_explain": lambda client, job_id, worst: [job_id],
            "explain": lambda client, keys: [
                {"job_id": key, "tokens": {}, "turns": TURNS} for key in keys
            ],
        }


@contextmanager
def serving(app: FastAPI, port: int) -> Iterator[str]:
    """Serve an application in a thread; gives the address of its page."""
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline_s = time.monotonic() + 30.0
    while not server.started:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}/v1/agentkv/ui"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.fixture
def five_states() -> Iterator[str]:
    """Two engines: one with a job in each state, one with a job of an evil id."""
    jobs = [job(f"job-{state}", state) for state in STATES]
    jobs[1].update(held_back=True, why="memory for it is needed by jobs that came before")
    first, second = Engine(0, jobs), Engine(1, [job(EVIL, "running", command=EVIL)])
    first.events = [
        event(88.0, "arrival", "job-over", turn=1),
        event(90.0, "arrival", "job-pinned", turn=3),
        event(91.0, "waiting_to_running", "job-pinned"),
        event(94.0, "finish", "job-pinned", turn=3, ttft_s=1.5),
        event(94.0, "finish", "job-over", turn=1, ttft_s=2.0),
        event(95.0, "pinned", "job-pinned", text="pins 26 blocks"),
        event(95.1, "decision", "job-pinned", text="pins 26 blocks while `pytest` runs"),
        event(
            95.5, "unpinned", "job-pinned", reason="returned", text="its next turn came after 2 s"
        ),
        event(
            96.0, "unpinned", "job-evicted", reason="pressure", text="let go after 3 s: pressure"
        ),
        event(97.0, "pinned", "job-over", text="pins 26 blocks"),
        event(98.0, "unpinned", "job-over", reason="released", text="let go after 1 s: released"),
        event(98.0, "closed", "job-over", text="over after 7 turns: released", **OVER),
    ]
    second.events = [
        event(95.0, "arrival", EVIL, turn=3),
        event(97.0, "finish", EVIL, turn=3, ttft_s=0.5),
        event(99.0, "held", EVIL, text=EVIL),
    ]
    with serving(make_app(first.answers, second.answers), free_port()) as url:
        yield url


def test_the_page_shows_what_the_engines_say(chromium: Any, five_states: str) -> None:
    """Which server it is; figures are sums, means and quantiles over engines; each engine has its
    pool, and a row for each job with its state and reason. Nothing but this server is asked."""
    with page_of(chromium, five_states) as page:
        page.wait_for_selector("#engines article:nth-child(2) td.job")
        assert page.title() == "tiny on box · agentkv"
        names = ("hits", "ttft", "took", "rate", "queue", "twice", "pins", "predictor", "jobs")
        totals = {name: page.get_attribute(f"#total-{name}", "value") for name in names}
        rate = float(totals.pop("rate") or 0)
        assert totals == {
            **{"hits": "3000", "ttft": "0.5", "took": "3", "queue": "6", "twice": "84"},
            **{"pins": "60", "predictor": "16", "jobs": "6"},
        }
        assert rate == pytest.approx(2 * 1005 / 105, rel=0.05)
        assert page.inner_text("#note-ttft") == "┄ first turns 2.0 s, since the start"
        tails = [page.inner_text(f"#tail-{name}").split() for name in ("ttft", "took")]
        assert [" ".join(words) for words in tails] == [
            "p50 1.0 s, p99 1.5 s; first p50 2.0 s, p99 2.0 s",
            "p50 3.0 s, p99 4.0 s; first p50 6.0 s, p99 6.0 s",
        ]
        title = "Of 2 later, 1 first turns that ended in the last 5 minutes"
        assert page.get_attribute("#tail-ttft", "title") == title
        assert page.inner_text("#note-hits") == "3,000 of 4,000 tokens since the start"
        assert page.inner_text("#replay") == f"agentkv replay {page.evaluate('location.origin')}"
        assert page.inner_text("#note-pins") == "60 of 80"
        states = page.inner_text("#note-jobs").split(", ")
        assert sum(int(each.split()[0]) for each in states) == 6
        blocks = page.eval_on_selector_all(
            "article:first-child .legend b", "parts => parts.map(part => part.dataset.blocks)"
        )
        assert blocks == ["40", "20", "5", "15", "20"]
        states = page.eval_on_selector_all(
            "article:first-child td.state", "cells => cells.map(cell => cell.textContent)"
        )
        assert sorted(states) == sorted([*STATES, "over"])
        assert "needed by jobs that came before" in page.inner_text("article:first-child tbody")
        assert page.is_visible("#pressure")
        assert page.problems == []
        assert page.hosts == {"127.0.0.1"}


def test_a_pin_is_one_line_and_a_job_that_ended_stays(chromium: Any, five_states: str) -> None:
    """What is pinned, for what and how it ended is one line; a job's last pin has none. A job that
    is over keeps its turns, its time and what it found."""
    with page_of(chromium, five_states) as page:
        page.wait_for_selector("td.state >> text=over")
        lines = page.eval_on_selector_all(
            "#decisions li", "items => items.map(item => [item.className, item.innerText])"
        )
        shown = [(kind, *text.split("\n")[1:]) for kind, text in lines]
        assert shown == [
            ("", EVIL, EVIL),
            ("", "job-over", "over after 7 turns: released"),
            ("loss", "job-evicted", "let go after 3 s: pressure"),
            ("", "job-pinned", "pins 26 blocks while `pytest` runs; its next turn came after 2 s"),
        ]
        cells = page.eval_on_selector_all(
            "article:first-child tbody tr:last-child td",
            "cells => cells.map(cell => cell.innerText)",
        )
        assert [cells[0], *cells[2:]] == [
            *("job-over", "over", "7", "61 s", "", "80 %", "released"),
        ]


def test_a_row_opens_for_its_turns(chromium: Any, five_states: str) -> None:
    """A click, and a link to the job, show its turns with their times, what was pinned after each,
    and why one missed and what to do, as /explain says."""
    with page_of(chromium, five_states) as page:
        page.click("text=job-pinned")
        page.wait_for_selector(".turns td")
        page.click(".detail a")
        page.wait_for_selector(".turns td")
        assert page.url.endswith("?job=job-pinned")
        assert page.eval_on_selector_all("td.job", "cells => cells.length") == 1
        rows = page.eval_on_selector_all(
            ".turns tbody tr",
            "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))",
        )
        assert rows == [
            ["1", "0 ms", "1.5 s", "4.0 s", "800", "0 %", "50", "pins 26 blocks; let go"],
            ["2", "500 ms", "2.0 s", "\u2013", "1,000", "80 %", "\u2013", "pytest"],
            ["computed 200 tokens again: evicted. What to do: run fewer jobs."],
        ]
        assert page.get_attribute("button.open", "aria-expanded") == "true"
        assert page.problems == []


def test_a_job_id_is_text(chromium: Any, five_states: str) -> None:
    """Ids, commands and reasons with tags in them are shown as they are, and run nothing."""
    with page_of(chromium, five_states) as page:
        page.wait_for_selector("article:nth-child(2) td.job")
        assert page.inner_text("article:nth-child(2) td.job") == EVIL
        assert EVIL in page.inner_text("#decisions")
        assert page.query_selector_all("main img, main script") == []
        assert page.title() == "tiny on box · agentkv"


def test_the_page_fits_a_phone_and_follows_the_colour_scheme(
    chromium: Any, five_states: str
) -> None:
    """At 380 pixels nothing scrolls sideways; dark and light, by the system or by the page's own
    switch, which a reload keeps, have other grounds."""
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    grounds = {}
    for scheme in ("light", "dark"):
        with page_of(chromium, five_states, size=PHONE, scheme=scheme) as page:
            page.wait_for_selector("article:nth-child(2) td.job")
            page.click("text=job-pinned")
            page.wait_for_selector(".turns td")
            assert not scrolls_sideways(page)
            grounds[scheme] = page.evaluate(ground)
    assert len(set(grounds.values())) == 2
    with page_of(chromium, five_states, scheme="dark") as page:
        page.click("#theme")
        assert page.evaluate(ground) == grounds["light"]
        page.reload()
        assert page.evaluate(ground) == grounds["light"]
        page.click("#theme")
        page.click("#theme")
        assert page.evaluate(ground) == grounds["dark"]


def test_the_page_works_with_a_keyboard(chromium: Any, five_states: str) -> None:
    """Tab goes through all controls in the order of the page; the table has headers, lanes and the
    pool have names."""
    with page_of(chromium, five_states) as page:
        page.wait_for_selector("article:nth-child(2) td.job")
        order = []
        for _ in range(6):
            page.keyboard.press("Tab")
            order.append(
                page.evaluate("document.activeElement.id || document.activeElement.className")
            )
        assert order == ["skip", "theme", "pause", "copy", "find", "open"]
        page.keyboard.press("Enter")
        page.wait_for_selector(".turns td")
        page.fill("#find", "job-tool")
        assert page.eval_on_selector_all("article:first-child td.job", "cells => cells.length") == 1
        assert "blocks: running 40" in page.get_attribute("article:first-child .pool", "aria-label")
        assert "tool" in page.get_attribute("article:first-child .lane", "aria-label")
        assert page.eval_on_selector_all("th[scope=col]", "heads => heads.length") == 16


def test_the_page_asks_for_the_key(chromium: Any) -> None:
    """Where the server asks for a key, the page loads without it, says when it is wrong, keeps the
    right one in the tab and sends it with each stream."""
    app = make_app(Engine(0, [job("mine", "running")]).answers)
    app.user_middleware.clear()
    app.add_middleware(AuthenticationMiddleware, tokens=["right"])
    app.add_middleware(AgentKVMiddleware)
    with serving(app, free_port()) as url, page_of(chromium, url) as page:
        page.wait_for_selector("#key:focus")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=does not know this key")
        page.fill("#key", "right")
        page.keyboard.press("Enter")
        page.wait_for_selector("td.job >> text=mine")
        assert not page.is_visible("#ask")
        page.reload()
        page.wait_for_selector("td.job >> text=mine")
        assert "right" not in page.content()


def test_the_page_says_that_the_server_is_gone_and_comes_back(chromium: Any) -> None:
    """When the server ends the page says so; when it is there again it goes on by itself; under a
    stock policy it says what is missing."""
    port = free_port()
    with serving(make_app(Engine(0, [job("a", "running")]).answers), port) as url:
        context = page_of(chromium, url)
        page = context.__enter__()
        page.wait_for_selector("#status[data-state=live]")
    page.wait_for_selector("#status[data-state=gone]")
    assert page.is_visible("#problem")
    with serving(make_app(Engine(0, [job("b", "pinned")]).answers), port):
        page.wait_for_selector("td.job >> text=b")
        assert not page.is_visible("#problem")
    with serving(make_app(policy=None), port):
        page.wait_for_selector("text=runs without agentkv's policies")
    context.__exit__(None, None, None)


def test_the_files_of_the_page_need_no_key_and_no_other_origin() -> None:
    """Each file is served before the key is asked for, with a policy that allows this origin
    alone; a file that is not the page's is asked for with a key, as all else is."""
    app = make_app(Engine(0, []).answers)
    app.user_middleware.clear()
    app.add_middleware(AuthenticationMiddleware, tokens=["right"])
    app.add_middleware(AgentKVMiddleware)
    with serving(app, free_port()) as url, httpx.Client() as client:
        for path in ("", *(f"/{name}" for name in PAGE_TYPES)):
            reply = client.get(url + path)
            assert reply.status_code == 200
            assert reply.headers["content-security-policy"].startswith("default-src 'self'")
        assert client.get(f"{url}/").headers["location"] == "../ui"
        for path in ("/../info", "/nothing.js", "x"):
            assert client.get(url + path).status_code == 401


def test_every_file_of_the_page_is_served() -> None:
    """The folder holds the files that are served and no other."""
    folder = importlib.resources.files("agentkv.integrations.vllm") / "ui"
    assert {file.name for file in folder.iterdir()} == set(PAGE_TYPES)
