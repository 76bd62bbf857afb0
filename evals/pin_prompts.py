"""The five turns of the pin experiment, with simulated tool outputs long enough to fill blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Tokenizers make 2.5 to 4.5 characters of such text into one token; a low guess gives text that
# is rather too long than too short.
_CHARS_PER_TOKEN = 4
# Each turn must fill at least one block more than the one before it.
_BLOCKS_PER_TURN = 1.5


@dataclass(frozen=True, slots=True)
class TurnScript:
    """What the user asks, and one line of the tool output that comes before the next turn.

    `output_tokens` is how much output the reference experiment added.
    """

    user_prompt: str
    output_line: Callable[[int], str]
    output_tokens: int


SYSTEM_PROMPT = "You write bash commands. Answer with only a bash block, without any explanation."

TURNS = (
    TurnScript("List files in the project.", "src/module_{:03d}.py".format, 33),
    TurnScript("Read main.py.", "def step_{0}(value): return value + {0}".format, 115),
    TurnScript("Search for TODO comments.", "src/module_{0:03d}.py:7: # TODO: case {0}".format, 82),
    TurnScript("Check git status.", "        modified:   src/module_{:03d}.py".format, 78),
    TurnScript("Run pytest.", "tests/test_module_{:03d}.py PASSED".format, 0),
)


def system_prompt(block_size: int) -> str:
    """The system prompt, with enough notes on the project that the first turn fills a block."""
    notes = _lines("Note {0}: module_{0:03d} depends on nothing.".format, 66, block_size)
    return f"{SYSTEM_PROMPT}\n{notes}"


def simulated_output(script: TurnScript, block_size: int) -> str:
    """The output of the turn's tool: the reference's size, or more if blocks are larger."""
    return _lines(script.output_line, script.output_tokens, block_size)


def _lines(line: Callable[[int], str], num_tokens: int, block_size: int) -> str:
    num_chars = _CHARS_PER_TOKEN * max(num_tokens, _BLOCKS_PER_TURN * block_size)
    num_lines = -(-num_chars // len(line(0)))
    return "\n".join(line(number) for number in range(int(num_lines)))
