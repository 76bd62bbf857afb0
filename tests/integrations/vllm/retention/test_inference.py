"""Which requests without a `job_id` belong to a job: 63 usable blocks of 16 tokens."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from agentkv.evals.simulator.vllm_scheduler import sha256_hasher
from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.retention.conversations import MAX_SIBLINGS, MIN_GAPS, MIN_JOBS
from agentkv.integrations.vllm.retention.inference import GRACE_S, SILENCE_S
from agentkv.integrations.vllm.retention.tool_signals import NO_TOOL_TTL_S
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import BLOCK_TOKENS, prompt_of

SYSTEM_PROMPT = prompt_of(80, salt=500)
REPLY_TOKENS = 12

Step = tuple[Any, ...]
Row = tuple[Step, dict[str, int], list[str]]
"""(step, turns of each live job after it, jobs that are pinned after it)."""


class Agents:
    """Agents that send no tags; a step is the name of a method with its arguments.

    Each agent's prompt is its own history plus 40 new tokens. A turn's request has the name of its
    agent and its number, as in `a1`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.histories: dict[str, list[int]] = {}
        self.replies: dict[str, list[int]] = {}
        self._num_turns: dict[str, int] = {}

    def prompt(self, agent: str, *, is_repeated: bool = False) -> list[int]:
        """The agent's next prompt, or once more the last one."""
        history = self.histories.setdefault(agent, [*SYSTEM_PROMPT])
        if not is_repeated:
            history += self.replies.pop(agent, [])
            history += prompt_of(40, salt=sum(map(ord, agent)) + len(history))
        return list(history)

    def asks(
        self, agent: str, command: str | None = "ls", *, is_repeated: bool = False, **options: Any
    ) -> str:
        """The agent's turn, whose reply runs the command, arrives."""
        number = self._num_turns[agent] = self._num_turns.get(agent, 0) + 1
        reply = "That is all." if command is None else f"So:\n```bash\n{command}\n```"
        return self.engine.add(
            self.prompt(agent, is_repeated=is_repeated),
            max_tokens=REPLY_TOKENS,
            reply=reply,
            request_id=f"{agent}{number}",
            **options,
        )

    def says(self, agent: str, command: str | None = "ls", **options: Any) -> None:
        """A whole turn of the agent."""
        request = self.engine.scheduler.requests[self.asks(agent, command, **options)]
        self.engine.run()
        self.replies[agent] = list(request.output_token_ids)

    def repeats(self, agent: str) -> None:
        """The agent sends its last prompt again."""
        self.says(agent, is_repeated=True)

    def rerenders(self, agent: str) -> None:
        """The chat template writes the agent's last reply in another way, and shorter."""
        self.replies[agent] = prompt_of(len(self.replies[agent]) // 2, salt=77)

    def drops_thought(self, agent: str, num_tokens: int) -> None:
        """The chat template had ended the prompt with tokens that it does not repeat."""
        del self.histories[agent][-num_tokens:]

    def drops_start_of_reply(self, agent: str) -> None:
        """The chat template leaves the first half of the agent's last reply out, as a thought."""
        del self.replies[agent][: REPLY_TOKENS // 2]

    def retokenizes(self, agent: str) -> None:
        """The tokenizer writes the text of the agent's last reply in other tokens."""
        vocabulary = self.engine.vocabulary
        self.replies[agent] = vocabulary.encode(vocabulary.decode(self.replies[agent]), 7)

    def chats(self, agent: str, pause_s: float = 0.0) -> None:
        """A whole turn, after a pause, with a reply in which no tool call can be read."""
        self.wait(pause_s)
        self.says(agent, None)

    def forks(self, agent: str, other: str) -> None:
        """Another agent goes on from the same history."""
        self.histories[other] = list(self.histories[agent])
        self.replies[other] = list(self.replies.get(agent, []))

    def compacts(self, agent: str) -> None:
        """The agent replaces its history by a summary."""
        self.histories[agent] = SYSTEM_PROMPT + prompt_of(30, salt=78)
        self.replies[agent] = []

    def tagged(self, agent: str, job_id: str) -> None:
        """A turn of the agent that names a job."""
        self.says(agent, job_id=job_id)

    def aborts(self, agent: str) -> None:
        """The agent's turn is cut off by its client before it runs."""
        self.engine.abort(self.asks(agent))

    def wait(self, seconds: float) -> None:
        self.engine.wait(seconds)

    def finish(self) -> None:
        """All that runs ends."""
        self.engine.run()


def play(engine: Engine, steps: Sequence[Step]) -> Agents:
    agents = Agents(engine)
    for name, *arguments in steps:
        getattr(agents, name)(*arguments)
    return agents


def live_jobs(engine: Engine) -> dict[str, int]:
    return {job.job_id: job.num_turns for job in engine.retention.jobs}


TABLES: dict[str, list[Row]] = {
    "the second turn proves a job": [
        (("says", "a"), {}, []),
        (("says", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
        (("says", "a"), {"inferred-a1": 3}, ["inferred-a1"]),
    ],
    "an agent whose tool calls cannot be read is known by its next turn": [
        (("chats", "a"), {}, []),
        (("chats", "a", 1.5), {"inferred-a1": 2}, ["inferred-a1"]),
        (("chats", "a", 3.0), {"inferred-a1": 3}, ["inferred-a1"]),
        (("wait", 2 * GRACE_S), {"inferred-a1": 3}, ["inferred-a1"]),
    ],
    "a person, who answers after a pause, has no job": [
        (("chats", "a"), {}, []),
        (("chats", "a", 28.0), {}, []),
        (("chats", "a", 12.0), {}, []),
        (("chats", "a", 2.0), {}, []),
    ],
    "a person who answers fast once has a job until the next pauses": [
        (("chats", "a"), {}, []),
        (("chats", "a", 2.0), {"inferred-a1": 2}, ["inferred-a1"]),
        (("chats", "a", 28.0), {"inferred-a1": 3}, ["inferred-a1"]),
        (("chats", "a", 28.0), {"inferred-a1": 3}, ["inferred-a1"]),
        (("wait", SILENCE_S), {}, []),
        (("chats", "a", 28.0), {}, []),
    ],
    "a long tool of an agent is no pause, by the gaps of its siblings": [
        (("chats", "a"), {}, []),
        (("chats", "a", 1.0), {"inferred-a1": 2}, ["inferred-a1"]),
        (("chats", "b"), {"inferred-a1": 2}, ["inferred-a1"]),
        (
            ("chats", "b", 30.0),
            {"inferred-a1": 2, "inferred-b1": 2},
            ["inferred-a1", "inferred-b1"],
        ),
    ],
    "silence ends a job whose calls cannot be read, and it may go on all the same": [
        (("chats", "a"), {}, []),
        (("chats", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
        (("chats", "a"), {"inferred-a1": 3}, ["inferred-a1"]),
        (("wait", SILENCE_S), {}, []),
        (("chats", "a", 30.0), {"inferred-a1": 4}, ["inferred-a1"]),
    ],
    "a longer prompt without the reply continues nothing": [
        (("chats", "a"), {}, []),
        (("rerenders", "a"), {}, []),
        (("chats", "a"), {}, []),
    ],
    "the end of a reply proves it, where its thought is left out": [
        (("chats", "a"), {}, []),
        (("drops_start_of_reply", "a"), {}, []),
        (("chats", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
    ],
    "the text of a reply proves it, where its tokens differ": [
        (("chats", "a"), {}, []),
        (("retokenizes", "a"), {}, []),
        (("chats", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
    ],
    "samples whose calls cannot be read are told apart by their replies": [
        (("chats", "a"), {}, []),
        (("forks", "a", "b"), {}, []),
        (("says", "b", None, {"is_repeated": True}), {}, []),
        (("chats", "b"), {"inferred-b1": 2}, ["inferred-b1"]),
        (("chats", "a"), {"inferred-a1": 2, "inferred-b1": 2}, ["inferred-a1", "inferred-b1"]),
    ],
    "a reply without a tool call ends the job, and its pin": [
        (("says", "a"), {}, []),
        (("says", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
        (("says", "a", None), {"inferred-a1": 3}, ["inferred-a1"]),
        (("wait", NO_TOOL_TTL_S), {"inferred-a1": 3}, []),
        (("wait", GRACE_S), {}, []),
        (("says", "a"), {}, []),
    ],
    "an agent that could not read a tool call goes on with its job": [
        (("says", "a"), {}, []),
        (("says", "a", None), {"inferred-a1": 2}, ["inferred-a1"]),
        (("wait", 0.9 * GRACE_S), {"inferred-a1": 2}, []),
        (("says", "a"), {"inferred-a1": 3}, ["inferred-a1"]),
        (("wait", GRACE_S), {"inferred-a1": 3}, ["inferred-a1"]),
    ],
    "the same prompt again is a sibling of a first turn": [
        (("says", "a"), {}, []),
        (("repeats", "a"), {}, []),
        (("says", "a"), {"inferred-a2": 2}, ["inferred-a2"]),
    ],
    "a fork of a turn in flight is a request of its own": [
        (("says", "a"), {}, []),
        (("forks", "a", "b"), {}, []),
        (("asks", "a"), {"inferred-a1": 2}, []),
        (("asks", "b"), {"inferred-a1": 2}, []),
        (("finish",), {"inferred-a1": 2}, ["inferred-a1"]),
    ],
    "samples of one prompt are told apart by their replies": [
        (("says", "a"), {}, []),
        (("forks", "a", "b"), {}, []),
        (("says", "b", "cat x", {"is_repeated": True}), {}, []),
        (("says", "b"), {"inferred-b1": 2}, ["inferred-b1"]),
        (("says", "a"), {"inferred-a1": 2, "inferred-b1": 2}, ["inferred-a1", "inferred-b1"]),
    ],
    "agents that share a system prompt have jobs of their own": [
        (("says", "a"), {}, []),
        (("says", "b"), {}, []),
        (("says", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
        (("says", "b"), {"inferred-a1": 2, "inferred-b1": 2}, ["inferred-a1", "inferred-b1"]),
    ],
    "the longest match wins": [
        (("says", "a"), {}, []),
        (("forks", "a", "b"), {}, []),
        (("repeats", "b"), {}, []),
        (("says", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
        (("rerenders", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
        (("says", "a"), {"inferred-a1": 3}, ["inferred-a1"]),
    ],
    "a reply that the chat template writes in another way still continues": [
        (("says", "a"), {}, []),
        (("rerenders", "a"), {}, []),
        (("says", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
    ],
    "a thought that the chat template opened may be missing": [
        (("says", "a"), {}, []),
        (("drops_thought", "a", 4), {}, []),
        (("says", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
    ],
    "a prompt that ends in another way is another prompt": [
        (("says", "a"), {}, []),
        (("drops_thought", "a", 5), {}, []),
        (("says", "a"), {}, []),
    ],
    "a compacted history opens a job of its own": [
        (("says", "a"), {}, []),
        (("says", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
        (("compacts", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
        (("says", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
        (("says", "a"), {"inferred-a1": 2, "inferred-a3": 2}, ["inferred-a1", "inferred-a3"]),
    ],
    "a turn that was aborted may be sent again": [
        (("says", "a"), {}, []),
        (("aborts", "a"), {"inferred-a1": 2}, []),
        (("repeats", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
    ],
    "a tag wins, and the turn it names is not continued": [
        (("says", "a"), {}, []),
        (("tagged", "a", "mine"), {"mine": 1}, ["mine"]),
        (("says", "a"), {"mine": 1, "inferred-a1": 2}, ["inferred-a1", "mine"]),
    ],
    "a request that names an inferred job makes it an ordinary one": [
        (("says", "a"), {}, []),
        (("says", "a"), {"inferred-a1": 2}, ["inferred-a1"]),
        (("tagged", "a", "inferred-a1"), {"inferred-a1": 3}, ["inferred-a1"]),
        (("says", "a"), {"inferred-a1": 3}, ["inferred-a1"]),
    ],
}


@pytest.mark.parametrize("name", TABLES)
def test_inference_rule(name: str, make_engine: Callable[..., Engine]) -> None:
    """Each table of TABLES holds on vLLM's real scheduler, sync and async."""
    engine = make_engine(fixed_ttl_s=60.0)
    agents = Agents(engine)
    for number, ((step, *arguments), jobs, pinned) in enumerate(TABLES[name]):
        options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        getattr(agents, step)(*arguments, **options)
        row = f"row {number}: {step} {arguments}"
        assert live_jobs(engine) == jobs, f"{row}: jobs {live_jobs(engine)}, expected {jobs}"
        found = sorted(engine.pinned)
        assert found == sorted(pinned), f"{row}: pinned {found}, expected {pinned}"


TWO_TURNS: list[Step] = [("says", "a", "ls"), ("says", "a", "cat x")]


@pytest.mark.parametrize("policy", ["continuum", "context_serve", "agentkv"])
def test_replies_are_read_under_every_policy(policy: str) -> None:
    """An inferred job's tool is known from its reply, and its duration from the next turn's gap."""
    engine = Engine(policy=policy, prefill_reload_s=[0.0, 1.0, 0.0])
    play(engine, TWO_TURNS)
    (job,) = engine_side.call(engine.scheduler, "jobs", [None, ["inferred-a1"]])
    assert (job["last_tool"], job["command"], job["turns"]) == ("cat", "cat", 2)
    observed = engine.totals["tool_observations_total"]
    assert observed == {"gap": 1}
    assert len(engine.retention.policy.learned.durations.of("ls")) == 1


def test_an_inferred_job_is_marked() -> None:
    """The event log and the counter tell it from one that a client named."""
    engine = Engine()
    agents = play(engine, TWO_TURNS)
    agents.says("b", job_id="named")
    events = engine.events
    assert events["inferred-a1"][0]["inferred"] is True
    assert events["named"][0]["inferred"] is False
    assert engine_side.call(engine.scheduler, "stats", [])["inferred_jobs_total"] == 1


def test_an_inferred_job_has_the_place_of_its_first_request() -> None:
    """Its turns stand before those of jobs that came after that request."""
    engine = Engine()
    agents = play(engine, [("says", "a")])
    agents.says("b", job_id="later")
    agents.says("a")
    jobs = engine.retention.jobs
    assert jobs.get("inferred-a1").order < jobs.get("later").order


def test_inference_can_be_turned_off() -> None:
    """With `infer_jobs` false no request without a `job_id` belongs to a job."""
    engine = Engine(infer_jobs=False)
    play(engine, TWO_TURNS)
    assert (live_jobs(engine), engine.pinned) == ({}, {})


def open_jobs(engine: Engine, num_jobs: int, command: str | None = "ls") -> Agents:
    """Agents of one kind that each have two turns and are done."""
    steps: list[Step] = []
    for agent in "cdefgh"[:num_jobs]:
        steps += [("says", agent, command), ("says", agent, None)]
    agents = play(engine, [*steps, ("wait", GRACE_S if command else SILENCE_S)])
    assert live_jobs(engine) == {}
    return agents


def test_where_requests_open_jobs_a_first_turn_is_pinned() -> None:
    """Once enough requests with the same system prompt have, the next one counts as a job's first
    turn."""
    engine = Engine(num_blocks=257, fixed_ttl_s=60.0)
    agents = open_jobs(engine, MIN_JOBS)
    agents.says("a")
    assert engine.pinned == {"inferred-a1": (120 + REPLY_TOKENS - 1) // BLOCK_TOKENS}
    agents.says("b", None)
    agents.wait(GRACE_S)
    assert (live_jobs(engine), list(engine.pinned)) == ({"inferred-a1": 1}, ["inferred-a1"])


def test_a_first_turn_stays_pinned_where_calls_cannot_be_read() -> None:
    """Its kind goes on after such replies, so the reply of a first turn that is expected to open a
    job ends nothing."""
    engine = Engine(num_blocks=257, fixed_ttl_s=60.0)
    open_jobs(engine, MIN_JOBS, None).chats("a")
    engine.wait(GRACE_S)
    assert (live_jobs(engine), list(engine.pinned)) == ({"inferred-a1": 1}, ["inferred-a1"])


@pytest.mark.parametrize(
    ("num_jobs", "steps"),
    [
        (MIN_JOBS - 1, [("says", "a")]),
        (MIN_JOBS, [("aborts", "a")]),
        (MIN_JOBS, [("says", "x", None), ("says", "y", None), ("wait", GRACE_S), ("says", "a")]),
    ],
    ids=["one job less", "the turn is aborted", "a fifth of all requests opened no job"],
)
def test_where_requests_do_not_open_jobs_a_first_turn_is_as_under_stock(
    num_jobs: int, steps: list[Step]
) -> None:
    """Too few jobs are no expectation, too many single requests end it, and a turn that is cut off
    leaves no job."""
    engine = Engine(num_blocks=257)
    open_jobs(engine, num_jobs)
    play(engine, steps)
    assert (live_jobs(engine), engine.pinned) == ({}, {})


def test_single_turn_chat_holds_nothing() -> None:
    """Requests that continue nothing and call no tool are no jobs, hold no blocks, and make no
    wake-up due; of one prompt sent many times few are remembered."""
    engine = Engine(policy="agentkv")
    for _ in range(MAX_SIBLINGS + 3):
        engine.turn(prompt_of(100), reply="Paris (France).", max_tokens=4)
    retention = engine.retention
    assert (live_jobs(engine), engine.pinned, retention.next_due_s) == ({}, {}, inf)
    assert len(retention.inference.turns) == MAX_SIBLINGS


@pytest.mark.parametrize("command", ["ls", None])
def test_the_number_of_open_turns_is_bounded(command: str | None) -> None:
    """By `max_jobs`, the oldest first; and none outlives `job_lease_s`."""
    engine = Engine(max_jobs=3, job_lease_s=100.0)
    agents = play(engine, [("says", agent, command) for agent in "abcde"])
    turns = engine.retention.inference.turns
    assert len(turns) == 3
    agents.says("a")
    assert live_jobs(engine) == {}
    agents.wait(101.0)
    agents.says("f")
    assert len(turns) == 1


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    adapter: int | None = None,
    salt: str | None = None,
    image: str | None = None,
) -> Request:
    features = None
    if image is not None:
        where = PlaceholderRange(offset=20, length=30)
        features = [MultiModalFeatureSpec(None, "image", image, where)]
    request = Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(ignore_eos=True, max_tokens=REPLY_TOKENS),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=adapter and LoRARequest(f"adapter-{adapter}", adapter, "/nowhere"),
        cache_salt=salt,
        mm_features=features,
        block_hasher=sha256_hasher(BLOCK_TOKENS),
    )
    request.mm_features = []  # the image is in the hashes now, and there is no encoder for it
    return request


@pytest.mark.parametrize(
    ("first", "second", "is_continued"),
    [
        ({"adapter": 1}, {"adapter": 1}, True),
        ({"adapter": 1}, {"adapter": 2}, False),
        ({"adapter": 1}, {}, False),
        ({"salt": "x"}, {"salt": "x"}, True),
        ({"salt": "x"}, {"salt": "y"}, False),
        ({}, {"salt": "x"}, False),
        ({"image": "cat"}, {"image": "cat"}, True),
        ({"image": "cat"}, {"image": "dog"}, False),
    ],
)
def test_what_is_part_of_a_block_s_hash_is_part_of_the_prompt(
    first: dict[str, Any], second: dict[str, Any], is_continued: bool
) -> None:
    """A LoRA adapter, a cache salt or an image of its own makes the same tokens another prompt."""
    engine = Engine()
    engine.set_reply("a1", "```bash\nls\n```", REPLY_TOKENS)
    engine.scheduler.add_request(make_request("a1", prompt_of(120), **first))
    engine.run()
    engine.scheduler.add_request(make_request("a2", prompt_of(160), **second))
    assert bool(live_jobs(engine)) == is_continued


def test_a_prompt_that_fills_no_block_opens_no_job() -> None:
    """It has no hash to be found by."""
    engine = Engine()
    first = engine.turn(prompt_of(15), reply="```bash\nls\n```", max_tokens=4)
    engine.turn(first + prompt_of(100), reply="```bash\nls\n```", max_tokens=4)
    assert live_jobs(engine) == {}


def test_without_readable_calls_gaps_of_like_jobs_say_how_long_to_hold() -> None:
    """Where such jobs come back after 0.2 s, KV is held for little longer, not for its price."""
    engine = Engine(num_blocks=400, policy="agentkv", prefill_reload_s=[0.0, 0.002, 0.0])
    agents, held_s = Agents(engine), []
    for _ in range(MIN_GAPS + 2):
        agents.chats("a", 0.2)
        held_s += [pin.ttl_s for pin in engine.retention.pins]
    assert 0.2 < held_s[-1] < 0.5 * held_s[1]
