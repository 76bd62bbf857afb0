"""The timeline of a command's programs: when they usually end."""

import pytest

from agentkv.commands import analyze_command
from agentkv.durations.prior import end_s, limit_s, sleeps_s, timed


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("sleep 30", 30), ("sleep 5 && sleep 5", 10), ("sleep 30 & wait", 30)),
        *(("sleep 30 & sleep 20; wait", 30), ("sleep 30 & sleep 20 & wait", 30)),
        *(("sleep 10; sleep 30 & wait", 40), ("(sleep 5; sleep 5) & sleep 8 & wait", 10)),
        *(("sleep 30 & sleep 20", 20), ("for i in 1 2 3; do sleep 5; done", 15)),
        ("for i in 1 2 3; do sleep 5 & done; wait", 5),
        ("for i in 1 2; do for j in 1 2 3; do sleep 5; done; done", 30),
        ("for i in $(seq 1 60); do sleep 1; done", 60),
        *(("for i in {1..500}; do echo $i; done", 1), ("while true; do sleep 1; done", 60)),
        *(("timeout 10 sleep infinity", 10), ("timeout 5 bash -c 'while true; do ls; done'", 5)),
        *(("for i in 1 2 3; do timeout 5 sleep 30; done", 15), ("timeout 0 sleep 30", 30)),
        *(("yes > /dev/null", 60), ("yes | head", 0)),
        # a plan, an answer
        *(("pytest --collect-only -q", 1), ("npx jest --listTests", 1), ("make -n all", 1)),
        *(("npm publish --dry-run", 1), ("npm -v && mvn -v", 0.4), ("bash -n run.sh", 0.2)),
    ],
)
def test_the_last_awaited_program_ends_it(text: str, seconds: float) -> None:
    """Sequences add up, jobs run side by side, loops repeat, and time-outs cut."""
    assert end_s(timed(analyze_command(text))) == pytest.approx(seconds, rel=0.1, abs=0.2)


def test_only_told_waits_are_slept() -> None:
    """The sleeps that the text gives are added, and a `sleep $N` is not."""
    assert sleeps_s(timed(analyze_command("sleep 3; make; sleep 4 & sleep $N"))) == 3.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("timeout 5 make", 5), ("timeout 5 make && ls", 5.02)),
        *(("sleep 2; timeout 3 sleep 30", 5), ("timeout 5 make; npm test", None), ("make", None)),
        ("timeout 0 make", None),
    ],
)
def test_limit_holds_for_the_whole(text: str, seconds: float | None) -> None:
    """The limit is the time-out plus what runs outside it, unless that may last."""
    times = timed(analyze_command(text))
    main = max(times, key=lambda each: each.seconds).program
    assert limit_s(times, main) == (None if seconds is None else pytest.approx(seconds))
