"""Plays the same multi-turn jobs on a real server and keeps what each turn sampled."""

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from agentkv.server.process import ServerProcess
from tests.server.chat import LIMIT_S

NUM_JOBS, NUM_TURNS = 8, 3
INPUT_TOKENS, OUTPUT_TOKENS = 64, 64

TurnKey = tuple[int, int]
"""Number of the job, number of the turn."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The greedy tokens of one turn; per token its logprob and its lead over the runner-up."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    leads: tuple[float, ...]


Transcript = Mapping[TurnKey, Sampled]


def inputs_of(job: int) -> list[list[int]]:
    """What the user and the tools say in each turn of a job: token ids of its own."""
    chance = random.Random(job)
    return [[chance.randrange(100, 40_000) for _ in range(INPUT_TOKENS)] for _ in range(NUM_TURNS)]


def play(
    server: ServerProcess,
    name: str,
    *,
    num_jobs: int = NUM_JOBS,
    num_at_once: int,
    reference: Transcript | None = None,
    tools: Sequence[tuple[str, float]] = (),
) -> Transcript:
    """The first `num_jobs` jobs, `num_at_once` side by side, each turn with its whole history.

    With `tools`, each job says after a turn that one of them, (command, seconds), has run: without
    running it, so that no job waits. The history holds the
    reference's outputs where there is one, so that a turn that differs does not make the turns
    after it differ too.
    """

    def play_job(job: int) -> list[tuple[TurnKey, Sampled]]:
        turns: list[tuple[TurnKey, Sampled]] = []
        history: list[int] = []
        for turn, new in enumerate(inputs_of(job), start=1):
            history += new
            sampled = _complete(server, history, f"{name}-{job}", turn)
            turns.append(((job, turn), sampled))
            if tools and turn < NUM_TURNS:
                _tell_of_tool(server, f"{name}-{job}", *tools[(job + turn) % len(tools)])
            history += (reference[job, turn] if reference else sampled).tokens
        return turns

    with ThreadPoolExecutor(num_at_once) as pool:
        return dict(turn for turns in pool.map(play_job, range(num_jobs)) for turn in turns)


def _tell_of_tool(server: ServerProcess, job_id: str, command: str, duration_s: float) -> None:
    url = f"{server.base_url}/agentkv/jobs/{job_id}/tool"
    started = {"state": "started", "command": command}
    for event in (started, {**started, "state": "finished", "duration_s": duration_s}):
        assert httpx.post(url, json=event, timeout=LIMIT_S).status_code == 200


def _complete(server: ServerProcess, prompt: Sequence[int], job_id: str, turn: int) -> Sampled:
    request = {
        "model": "tiny",
        "prompt": list(prompt),
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 2,
        "return_tokens_as_token_ids": True,
        "job_id": job_id,
        "turn": turn,
        "is_last_step": turn == NUM_TURNS,
        # too few: agentkv admits all jobs at once, or memory would suffice
        "expected_turns": 1,
    }
    reply = httpx.post(f"{server.base_url}/completions", json=request, timeout=LIMIT_S)
    assert reply.status_code == 200, reply.text
    logprobs = reply.json()["choices"][0]["logprobs"]
    leads = []
    for candidates in logprobs["top_logprobs"]:
        best, second, *_ = sorted(candidates.values(), reverse=True)
        leads.append(best - second)
    tokens = tuple(int(token.removeprefix("token_id:")) for token in logprobs["tokens"])
    assert len(tokens) == OUTPUT_TOKENS
    return Sampled(tokens, tuple(logprobs["token_logprobs"]), tuple(leads))
