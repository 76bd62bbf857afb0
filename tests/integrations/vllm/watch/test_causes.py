"""A corpus of planted causes: two prompts of an agent, and what has become of the first."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers import AutoTokenizer

from agentkv.integrations.vllm.watch.divergence import Difference
from agentkv.integrations.vllm.watch.explanations import explanation

TEMPLATES = Path(__file__).parent / "templates"
Message = dict[str, Any]
Request = tuple[list[Message], list[Message]]
"""Messages and tools."""


def words(seed: object, number: int) -> str:
    """Words and numbers that depend on the seed alone."""
    chosen = random.Random(f"{seed}")
    return " ".join(
        f"{chosen.choice(['the', 'file', 'test'])} {chosen.randrange(10**4)}" for _ in range(number)
    )


def tool(name: str, does: str | None = None) -> Message:
    properties = {key: {"type": "string", "description": words((name, key), 5)} for key in "ab"}
    parameters = {"type": "object", "properties": properties}
    described = {"name": name, "description": does or words(name, 12), "parameters": parameters}
    return {"type": "function", "function": described}


def said(role: str, content: str, thought: str = "") -> Message:
    return {"role": role, "content": content, "thought": thought}


def step(number: int, num_thoughts: int = 0) -> list[Message]:
    """A tool call and its result."""
    call = {"name": "shell", "arguments": {"command": f"sed -n {number * 7}p src/p{number}.c"}}
    text = f"Now step {number}.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    thought = words(("thought", number), num_thoughts)
    return [said("assistant", text, thought), said("tool", words(("result", number), 40))]


def talk(num_steps: int, system: str = "", num_thoughts: int = 0) -> list[Message]:
    """A system prompt, a task, and steps."""
    start = [said("system", system or SYSTEM), said("user", "Do it fast. " + words("task", 20))]
    return sum((step(number, num_thoughts) for number in range(num_steps)), start)


def again(messages: list[Message]) -> list[Message]:
    """The agent is done, and the user asks for more."""
    done, more = words("done", 9), words("lexer", 9)
    return [*messages, said("assistant", f"All done. {done}"), said("user", f"Now that: {more}")]


def put(messages: list[Message], number: int, content: str) -> list[Message]:
    """The messages with another text in one."""
    changed = {**messages[number], "content": content}
    return [*messages[:number], changed, *messages[number + 1 :]]


SYSTEM = "You are a careful engineer. " + words("rules", 60)
DATED = "Today is {}. " + SYSTEM
COUNTED = SYSTEM + "\n<budget>{} tokens left</budget>"
LISTED = SYSTEM + "\nFiles:\n{}" + words("after", 30)
FILES = [f"- src/{number * 37}.c: {words(number, 3)}\n" for number in range(30)]
NOTE = f"\n<system-reminder>{words('note', 20)}</system-reminder>"
SUMMARY = said("user", "Summary of the work until now: " + words("summary", 60))
TOOLS = [tool(name) for name in ("shell", "view", "edit", "grep", "fetch")]
MORE = [*TOOLS, tool("browse")]
OTHER = [*TOOLS[:2], tool("edit", words("other", 10)), *TOOLS[3:]]
LONG, NEXT = talk(8), talk(9)
THOUGHT = talk(4, num_thoughts=60)
STEP = step(2)[0]["content"] + "<|im_end|>"
TITLES = [said("system", "You write titles. " + words("titles", 20)), said("user", words("x", 9))]
SUMS = [said("system", "You sum up talks. " + words("sums", 40)), *LONG[1:], said("user", "Do.")]
TASK2 = [*talk(0)[:1], said("user", words("task2", 60)), *step(30), said("tool", words("p", 300))]
WAY2 = [said("assistant", "Another way. " + words("w", 30)), said("tool", words("v", 400))]


TASK = talk(0)[1]["content"]
PRINTED = words("printed", 30)
THOUGHTFUL = f"<think>\n{words('t', 50)}\n</think>\n\n{STEP}"
RESULTS = [said("tool", words(("parallel", number), 20)) for number in range(3)]
CALLS = [*talk(2), said("assistant", "All at once. " + words("calls", 9)), *RESULTS]
TURNED = [*CALLS[:-3], *RESULTS[1:], RESULTS[0], *step(2)]


def files(listed: list[str]) -> str:
    return LISTED.format("".join(listed))


def case(
    right: str,
    was: list[Message],
    now: list[Message],
    template: str = "chatml",
    tools: tuple[list[Message], list[Message]] = (TOOLS, TOOLS),
    reply: str | None = None,
    **options: Any,
) -> tuple[Any, ...]:
    """`right` is the kind, the change and the place that explain must name for the second request.

    Without a `reply` it is the one that the second request repeats.
    """
    return right.split(" ", 2), (was, tools[0]), (now, tools[1]), template, reply, options


CASES = {
    "a date": case(
        "start edited system", talk(2, DATED.format("3 May")), talk(3, DATED.format("4 June"))
    ),
    "a date, headers": case(
        *("start edited system", talk(2, DATED.format("3 May")), talk(3, DATED.format("4 June"))),
        template="headers",
    ),
    "a counter": case("start edited", talk(2, COUNTED.format(812)), talk(3, COUNTED.format(79))),
    "a counter is added": case("start inserted", talk(2), talk(3, COUNTED.format(81234))),
    "a memory": case("start inserted system", talk(2), talk(3, NOTE + SYSTEM)),
    "a list grows": case("start inserted", talk(2, files(FILES[:20])), talk(3, files(FILES[:23]))),
    "a list shrinks": case("start removed", talk(2, files(FILES)), talk(3, files(FILES[5:]))),
    "a list turns": case(
        "start reordered", talk(2, files(FILES)), talk(3, files(FILES[9:] + FILES[:9]))
    ),
    "tools turn": case("start reordered", talk(2), talk(3), tools=(TOOLS, TOOLS[2:] + TOOLS[:2])),
    "a tool more": case("start tools browse added", talk(2), talk(3), tools=(TOOLS, MORE)),
    "a tool more, headers": case(
        "start tools browse added", talk(2), talk(3), "headers", tools=(TOOLS, MORE)
    ),
    "a tool less": case("start tools fetch left", talk(2), talk(3), tools=(TOOLS, TOOLS[:-1])),
    "a tool less, bars": case(
        "start tools fetch left", talk(2), talk(3), "bars", (TOOLS, TOOLS[:-1]), no_thoughts=True
    ),
    "no tools": case("start tools shell left", talk(2), talk(3), tools=(TOOLS, [])),
    "a tool's text": case("start tools edit described", talk(2), talk(3), tools=(TOOLS, OTHER)),
    "tools follow the question": case("start tools_moved", talk(1), again(talk(1)), "inst"),
    "tools follow it, long": case("start tools_moved", LONG, again(LONG), "inst"),
    "thoughts dropped": case("history thinking message 2", THOUGHT, again(THOUGHT)),
    "one thought dropped": case("history thinking", THOUGHT[:4], again(THOUGHT[:4])),
    "the reply's thought": case(
        "reply thinking", talk(2), talk(3), reply=f"<think>\n{words('t', 50)}\n</think>\n\n{STEP}"
    ),
    "the reply's thought, bars": case(
        "reply thinking", talk(2), talk(3), "bars", reply=f"{words('t', 50)}</think>{STEP}"
    ),
    "an empty thought": case("reply empty_thinking", talk(2), talk(3), no_thoughts=True),
    "a summary": case("compacted compacted message 2", LONG, [*LONG[:2], SUMMARY]),
    "a summary, headers": case("compacted compacted", LONG, [*LONG[:2], SUMMARY], "headers"),
    "a summary and a tail": case(
        "compacted compacted", LONG, [*LONG[:2], SUMMARY, *LONG[-4:], *step(8)]
    ),
    "the oldest steps": case("compacted compacted", LONG, [*LONG[:2], *LONG[6:], *step(8)]),
    "a result is cleared": case("history replaced message 5 (tool)", LONG, put(NEXT, 5, "[old]")),
    "a result is cleared, bars": case(
        "history replaced message 5", LONG, put(NEXT, 5, "[old]"), "bars", no_thoughts=True
    ),
    "a note in a result": case(
        "history inserted message 7 (tool)", LONG, put(NEXT, 7, LONG[7]["content"] + NOTE)
    ),
    "a note at the end": case(
        *("history removed/note message 17 (tool)", put(LONG, 17, LONG[17]["content"] + NOTE)),
        put(NEXT, 19, NEXT[19]["content"] + NOTE),
    ),
    "another system prompt": case("start replaced system", LONG, SUMS),
    "another conversation": case("start branched", LONG, TITLES, tools=(TOOLS, [])),
    "another task": case("start branched message 1", talk(3), TASK2),
    "another way": case("history branched message 10", LONG, [*LONG[:10], *WAY2]),
    "the reply's blanks": case("reply edited", talk(2), talk(3), reply=STEP.replace('": ', '":')),
    "another reply": case("reply replaced", talk(2), talk(3), reply="No. " + words("no", 20)),
    "a question is left out": case(
        *("history removed/note message 7", again(talk(2))),
        [*talk(2), *again([])[:1], *step(2)],
        reply=STEP,
    ),
    "parallel results turn": case(
        "history reordered/parallel_results message 7 (tool)", CALLS, TURNED, reply=STEP
    ),
    "parallel results turn, bars": case(
        *("history reordered/parallel_results", CALLS, TURNED, "bars"),
        reply=STEP,
        no_thoughts=True,
    ),
    "a clock in the task": case(
        "start edited/state message 1 (user)",
        put(talk(1), 1, "It is 9:14. Do it. " + NOTE),
        put(talk(2), 1, "It is 10:02. Do it. " + NOTE),
    ),
    "a clock comes into the task": case(
        "start inserted/state message 1 (user)", talk(2), put(talk(3), 1, "[4 May] " + TASK)
    ),
    "a counter in the task": case(
        "start edited/state message 1 (user)",
        put(talk(1), 1, "Step 1 of 40: do it."),
        put(talk(2), 1, "Step 2 of 40: do it."),
    ),
    "a note before the reply": case(
        "history removed/note message 6 (user)",
        [*talk(2), said("user", "Be short. " + words("short", 9))],
        talk(3),
        reply=STEP,
    ),
    "a note in the last result": case(
        "history removed/note message 5 (tool)",
        put(talk(2), 5, PRINTED + NOTE),
        put(talk(3), 5, PRINTED),
    ),
    "an old attachment": case(
        "history removed message 3 (tool)",
        put(talk(4), 3, f"screen 0 [attachment: {words('shot', 40)}]"),
        put(talk(5), 3, "screen 0"),
    ),
    "an old image": case(
        "history removed message 3 (tool)",
        put(talk(4), 3, "Seen:<|image_start|>" + "<|image_pad|>" * 30 + "<|image_end|>"),
        put(talk(5), 3, "Seen:"),
    ),
    "an attachment in the task": case(
        "start removed message 1 (user)",
        put(talk(2), 1, f"See {words('file', 40)} and do it."),
        put(talk(3), 1, "See  and do it."),
    ),
    "text within a result": case(
        "history removed message 5 (tool)",
        put(talk(2), 5, f"{PRINTED} {words('gone', 9)} and {PRINTED[::-1]}"),
        put(talk(3), 5, f"{PRINTED} and {PRINTED[::-1]}"),
    ),
    "a proxy drops reasoning": case(
        "reply thinking/not_sent_back the last reply", talk(2), talk(3), reply=THOUGHTFUL
    ),
    "a proxy drops it later": case(
        "history thinking/not_sent_back message 2 (assistant)",
        THOUGHT,
        [*THOUGHT[:2], {**THOUGHT[2], "thought": ""}, *THOUGHT[3:], *step(4)],
    ),
    "another identity": case(
        "start edited/identity system",
        talk(2, "You are Explore-7f3a, an agent. " + SYSTEM),
        talk(3, "You are Plan-91bc, an agent. " + SYSTEM),
    ),
    "another number of an agent": case(
        "start edited/identity system",
        talk(2, SYSTEM + "\nWorker: 12\nGo on."),
        talk(3, SYSTEM + "\nWorker: 31\nGo on."),
    ),
    "calls written again": case(
        "history edited message 2 (assistant)",
        talk(2),
        put(talk(3), 2, talk(1)[2]["content"].replace("Now step", "So step")),
    ),
}

ADVICE = {
    **{"parallel_results": "results of parallel calls", "state": "dates", "note": "leave notes"},
    **{"identity": "identity", "not_sent_back": "proxy", "new_question": "template"},
    **{"removed tool": "trims", "replaced tool": "trims"},
    **{"inserted tool": "as they were", "removed user": "cuts text", "removed system": "cuts text"},
    **{"inserted system": "dates", "edited assistant": "as they came", "reordered system": "order"},
}
"""What the advice must say by the cause, else by the change and whose message it is in."""


@cache
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def rendered(template: str, request: Request, options: Message) -> str:
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES))
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, indent=indent)
    messages, tools = request
    return environment.get_template(f"{template}.jinja").render(
        messages=messages, tools=tools, **options
    )


@pytest.mark.parametrize("name", CASES)
def test_a_planted_cause_is_named(name: str, demo_model_dir: Path) -> None:
    """Each cause is found by the tokens of both prompts, in four forms of chat templates."""
    (kind, change, *place), was, now, template, reply, options = CASES[name]
    change, _, cause = change.partition("/")
    made = tokenizer(demo_model_dir)
    first, *prompts = (
        made.encode(rendered(template, each, options), add_special_tokens=False)
        for each in ((was[0][:2], was[1]), was, now)
    )
    if reply is None:
        turn = [*now[0], *[said("assistant", "Done.")] * 99][len(was[0])]
        thought = f"<think>\n{turn['thought']}\n</think>\n\n" if turn["thought"] else ""
        reply = thought + turn["content"] + "<|im_end|>"
    known = prompts[0] + made.encode(reply, add_special_tokens=False)
    difference = Difference(0, 9999, known, len(prompts[0]), len(first), prompts[1])
    miss = {"reason": "diverged", "of_tokens": len(known), **difference.described(made.decode)}
    why, advice = explanation(miss)
    assert (miss["kind"], miss["change"]) == (kind, change), why
    assert "".join(place) in why
    assert not cause or miss["cause"] == cause
    if kind != "reply" or cause:
        assert ADVICE.get(miss["cause"] or f"{change} {miss['role']}", "") in advice
    assert ("dates" in advice) <= (miss["role"] in ("system", "user"))
    assert ("order" in advice) == (change == "reordered")


def test_the_same_text_in_other_tokens_and_another_image_are_named(demo_model_dir: Path) -> None:
    """Tokens that differ where the text does not, and blocks that do where the tokens do not."""
    made = tokenizer(demo_model_dir)
    prompt = made.encode("<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n")
    letters = [token for letter in "function" for token in made.encode(letter)]
    rest = made.encode(" parse(text) reads it all, and then some more of it.<|im_end|>\n")
    repeated = [*prompt, *made.encode("function"), *rest]
    written = Difference(0, 9999, [*prompt, *letters, *rest], len(prompt), 9, repeated)
    assert written.described(made.decode)["change"] == "retokenized"
    other_image = Difference(8, 16, prompt + rest, len(prompt), 9, prompt + rest)
    assert other_image.described(made.decode)["change"] == "attachment"
