"""Scheduling changes timing and memory, never output: greedy tokens under our policies and fcfs.

The same jobs run on six servers: under each policy all at once, with small prefill chunks and so
little memory that turns are preempted; and under two of them with large chunks and ample memory.
Some also run one at a time.
Stock itself may round differently in another batch; what it does is measured in the same run, as
the largest difference between the logprobs of a token under fcfs in two settings. Within that
spread a tie may go either way; where it is 0, nothing but equal tokens passes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from agentkv.durations.prediction import Speed
from agentkv.policies.pins import PinEnd
from agentkv.server.process import ServerProcess
from tests.conftest import TINY_ARGS, ServerPool
from tests.server.chat import WORDS, agentkv_get, chat, metric, wait_for
from tests.server.transcripts import NUM_JOBS, NUM_TURNS, Transcript, play

# The first test starts six servers.
pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]

NUM_SINGLE_JOBS = 3
"""Jobs played one after the other: at 3 s each, enough to see."""
SETTINGS = {
    "ample": ("--max-num-batched-tokens", "4096"),
    # 27 blocks for 8 jobs that grow to 12 each; a prompt of 64 to 320 tokens takes many chunks.
    "scarce": (
        *("--max-num-batched-tokens", "40", "--max-num-seqs", "8"),
        *("--num-gpu-blocks-override", "28", "--max-model-len", "768"),
    ),
}
# Long enough that no pin expires because the machine is busy.
LONG_TTL = ("--additional-config", '{"agentkv": {"ttl": "fixed", "fixed_ttl_s": 60.0}}')
# Holding is worth a tenth of a second for each of the pool's tokens: memory alone ends it.
LONG_HOLD = ("--additional-config", '{"agentkv": {"prefill_reload_s": [0.0, 0.1, 0.0]}}')
POLICIES = {
    "fcfs": (),
    "continuum": LONG_TTL,
    "context_serve": LONG_TTL,
    "agentkv": LONG_HOLD,
}
# With ample memory the others differ from continuum only in how soon a pin ends.
SERVERS = (
    *(("ample", "fcfs"), ("ample", "continuum")),
    *(("scarce", policy) for policy in POLICIES),
)
# One that is fast, one that is slow, and one that is now this and now that.
TOOLS = {
    "context_serve": (
        *(("ls", 0.02), ("pip install torch", 60.0)),
        *(("frobnicate", 0.02), ("frobnicate", 60.0)),
    )
}
"""Started between turns, so that turns are pinned for different times and freed at once."""
MODES = {"single": (NUM_SINGLE_JOBS, 1), "concurrent": (NUM_JOBS, NUM_JOBS)}
SINGLE_TOO = {("ample", "fcfs"), ("ample", "continuum"), ("scarce", "context_serve")}
"""One job at a time has memory enough, so that each of its tools is decided on."""


def modes_of(setting: str, policy: str) -> tuple[str, ...]:
    return ("concurrent", "single") if (setting, policy) in SINGLE_TOO else ("concurrent",)


RUNS_OF_OURS = [
    (setting, policy, mode)
    for setting, policy in SERVERS
    if policy != "fcfs"
    for mode in modes_of(setting, policy)
]
NOISE = 1e-4
"""Logprobs closer than this count as equal, for any spread of stock's: float32 over two layers."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Transcripts by policy, setting and mode; counts by policy and setting."""

    transcripts: dict[tuple[str, str, str], Transcript]
    preemptions: dict[tuple[str, str], float]
    pins: dict[tuple[str, str], dict[str, float]]
    """By policy and setting, then by speed."""
    pin_ends: dict[tuple[str, str], dict[str, float]]
    """By policy and setting, then by reason."""

    @property
    def reference(self) -> Transcript:
        """Stock with ample memory: all jobs side by side."""
        return self.transcripts["fcfs", "ample", "concurrent"]

    def of_stock(self) -> Iterator[Transcript]:
        return (run for (policy, *_), run in self.transcripts.items() if policy == "fcfs")

    def spread_of_stock(self) -> float:
        return max(largest_difference(run, self.reference) for run in self.of_stock())


@pytest.fixture(scope="module")
def runs(server_pool: ServerPool, tiny_model_dir: Path) -> Runs:
    """Every run there is; six servers, two at a time."""
    runs = Runs({}, {}, {}, {})
    for setting, policy in SERVERS:
        flags = (*TINY_ARGS, *SETTINGS[setting], *POLICIES[policy])
        server = server_pool.get(tiny_model_dir, *flags, policy=policy)
        for mode in modes_of(setting, policy):
            num_jobs, num_at_once = MODES[mode]
            runs.transcripts[policy, setting, mode] = play(
                server,
                f"{setting}-{mode}",
                num_jobs=num_jobs,
                num_at_once=num_at_once,
                reference=runs.reference if runs.transcripts else None,
                tools=TOOLS.get(policy, ()),
            )
        runs.preemptions[policy, setting] = metric(server, "vllm:num_preemptions_total")
        if policy != "fcfs":
            runs.pins[policy, setting] = {
                speed: metric(server, "agentkv:pins_total", speed=speed)
                for speed in ("none", *get_args(Speed))
            }
            runs.pin_ends[policy, setting] = {
                reason: metric(server, "agentkv:pin_ends_total", reason=reason)
                for reason in get_args(PinEnd)
            }
    return runs


def first_difference(run: tuple[int, ...], reference: tuple[int, ...]) -> int | None:
    """Place of the first token that differs; None if all are the same."""
    pairs = enumerate(zip(run, reference, strict=True))
    return next((place for place, (token, other) in pairs if token != other), None)


def largest_difference(run: Transcript, reference: Transcript) -> float:
    """Between the logprobs of two runs, over the tokens before the first that differs."""
    differences = [0.0]
    for key, sampled in run.items():
        other = reference[key]
        end = first_difference(sampled.tokens, other.tokens)
        pairs = zip(sampled.logprobs[:end], other.logprobs[:end], strict=True)
        differences += [abs(logprob - expected) for logprob, expected in pairs]
    return max(differences)


@pytest.mark.parametrize(("setting", "policy", "mode"), RUNS_OF_OURS)
def test_ours_sample_what_stock_samples(runs: Runs, setting: str, policy: str, mode: str) -> None:
    """Token for token, but for ties closer than stock's own spread."""
    run = runs.transcripts[policy, setting, mode]
    assert len(run) == MODES[mode][0] * NUM_TURNS
    spread = runs.spread_of_stock()
    for key, sampled in run.items():
        expected = runs.reference[key]
        place = first_difference(sampled.tokens, expected.tokens)
        if place is not None:
            assert expected.leads[place] <= 2 * spread, f"job and turn {key}, token {place}"


@pytest.mark.parametrize(("setting", "policy", "mode"), RUNS_OF_OURS)
def test_ours_stay_within_stocks_own_spread(
    runs: Runs, setting: str, policy: str, mode: str
) -> None:
    """Logprobs too: a block with another job's content would show in them first."""
    run = runs.transcripts[policy, setting, mode]
    assert largest_difference(run, runs.reference) <= max(2 * runs.spread_of_stock(), NOISE)


@pytest.mark.parametrize("policy", POLICIES)
def test_scarce_memory_preempted_running_turns(runs: Runs, policy: str) -> None:
    """Else the runs above would not have shown that a preempted turn ends with the same tokens."""
    assert runs.preemptions[policy, "scarce"] > 0
    assert runs.preemptions.get((policy, "ample"), 0) == 0


@pytest.mark.parametrize("policy", ["continuum", "context_serve", "agentkv"])
def test_scarce_memory_took_pins_away(runs: Runs, policy: str) -> None:
    """Some pins gave way to running turns, and all of them ended."""
    ends = runs.pin_ends[policy, "scarce"]
    assert ends["pressure"] > 0
    assert sum(ends.values()) == sum(runs.pins[policy, "scarce"].values())


def test_context_serve_decided_in_different_ways(runs: Runs) -> None:
    """Else its run above would have shown no more than continuum's."""
    pins = runs.pins["context_serve", "scarce"]
    assert min(pins[speed] for speed in get_args(Speed)) > 0


def test_the_jobs_are_worth_comparing(runs: Runs) -> None:
    """Each turn says something else, and the lead of its tokens is far above stock's spread."""
    outputs = {sampled.tokens for sampled in runs.reference.values()}
    assert len(outputs) == NUM_JOBS * NUM_TURNS
    leads = sorted(lead for sampled in runs.reference.values() for lead in sampled.leads)
    assert leads[len(leads) // 2] > 100 * max(runs.spread_of_stock(), 1e-6)


def test_the_template_serves_what_stock_serves(
    server_pool: ServerPool, tiny_model_dir: Path, tiny_fcfs_server: ServerProcess
) -> None:
    """The server names the policy `Mine`, pins by its rule, and samples the tokens of fcfs."""
    template = Path(__file__).parents[2] / "examples" / "policies" / "mine.py"
    server = server_pool.get(tiny_model_dir, *TINY_ARGS, policy=f"{template}:Mine")
    info = agentkv_get(server, "info")
    assert (info["policy"], info["settings"]["hold_s"]) == ("Mine", 5.0)
    for text in (WORDS, f"{WORDS} and more", f"{WORDS} and more and more"):
        ours = chat(server, text, job_id="job", max_tokens=24)
        stock = chat(tiny_fcfs_server, text, max_tokens=24)
        assert ours["choices"][0]["message"] == stock["choices"][0]["message"]
    wait_for(lambda: metric(server, "agentkv:pins_total") >= 2)
    assert metric(server, "agentkv:policy_faults_total") == 0
