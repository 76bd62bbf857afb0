"""A guard asks rules, and takes the stand-in's answer where theirs cannot be used."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentkv.guard import AMONG_ANSWERS, MAX_FAULTS, AnswerCheck, Fault, Guard


class Rules:
    """Answers by the function that it is given."""

    def answer(self, act: Callable[[], Any]) -> Any:
        return act()


def raising(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


NUMBER = AnswerCheck(int)


def guarded(check: AnswerCheck = NUMBER) -> tuple[Callable[..., Any], Guard, list[Fault]]:
    """A question whose stand-in answers 0, its guard, and what that reports."""
    faults: list[Fault] = []
    rules = Rules()
    guard = Guard(rules, faults.append)
    return guard.asking("answer", rules.answer, lambda act: 0, check), guard, faults


ENDINGS = [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


@pytest.mark.parametrize("error", ENDINGS)
def test_no_error_of_the_rules_gets_out(error: type[BaseException]) -> None:
    """Not even one that would end the process; the fault names the class that raised it."""
    ask, guard, faults = guarded()
    assert (ask(raising(error)), ask(lambda: 7)) == (0, 7)
    assert [(fault.rules, fault.question) for fault in faults] == [("Rules", "answer")]
    assert isinstance(faults[0].error, error)
    assert (guard.num_faults, guard.is_off) == (1, False)


@pytest.fixture
def sigterm() -> Iterator[None]:
    """SIGTERM raises SystemExit, as servers have it."""

    def stop(*_: Any) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)],
)
def test_a_signal_that_ends_the_process_gets_out(
    number: signal.Signals, error: type[BaseException], sigterm: None
) -> None:
    """It comes while a rule runs, and is no fault of it."""

    def act() -> int:
        os.kill(os.getpid(), number)
        return sum(range(1000))

    ask, _, faults = guarded()
    with pytest.raises(error):
        ask(act)
    assert faults == []


@pytest.mark.parametrize("answer", [None, "7", -7])
def test_an_answer_of_another_form_is_not_used(answer: Any) -> None:
    """Of another type, or one that the check refuses."""
    ask, _, faults = guarded(AnswerCheck(int, lambda answer, args: answer >= 0))
    assert ask(lambda: answer) == 0
    assert str(faults[0].error) == f"answer answered {answer!r}"


def test_a_late_answer_is_a_fault_and_used() -> None:
    """After 110 ms the answer is known, so nothing is gained by another."""
    ask, _, faults = guarded()
    assert ask(lambda: time.sleep(0.11) or 7) == 7
    assert [fault.is_late for fault in faults] == [True]


@pytest.mark.parametrize(("good_between", "is_off"), [(0, True), (AMONG_ANSWERS // 19, False)])
def test_rules_that_fail_often_are_switched_off(good_between: int, is_off: bool) -> None:
    """After MAX_FAULTS among AMONG_ANSWERS they are not asked any more; the last fault says so."""
    ask, guard, faults = guarded()
    for _ in range(MAX_FAULTS):
        for _ in range(good_between):
            ask(lambda: 7)
        ask(raising(ValueError))
    assert ([fault.is_last for fault in faults][-2:], guard.is_off) == ([False, is_off], is_off)
    assert ask(lambda: 7) == (0 if is_off else 7)
