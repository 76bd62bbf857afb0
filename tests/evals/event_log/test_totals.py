"""Turns that were passed over by turns of later jobs."""

from __future__ import annotations

from agentkv.evals.event_log import passed_over
from agentkv.integrations.vllm.watch.job_view import JobView, TurnView


def job(name: str, *turns: tuple[float, float | None], engine: int | None = None) -> JobView:
    """A job whose turns arrive and start at these times."""
    return JobView(
        name,
        engine,
        turns[0][0],
        100.0,
        turns=[
            TurnView(number, arrived_s, 100, started_s=started_s)
            for number, (arrived_s, started_s) in enumerate(turns, start=1)
        ],
    )


def counted(jobs: list[JobView], kind: str) -> tuple[int, ...]:
    """Turns, those that waited longer than 10 s, those passed over, and the most."""
    count = passed_over(jobs, 10.0)[kind]
    return tuple(count[name] for name in ("turns", "waited_longer", "passed_over", "most"))


def test_a_turn_of_a_later_job_after_the_time_counts() -> None:
    """A later turn that starts before the time is over, or is of an earlier job, does not count."""
    jobs = [
        job("earlier", (0.0, 0.0), (5.0, 17.0)),
        job("waits", (1.0, 1.0), (5.0, 20.0)),
        job("later", (2.0, 2.0), (13.0, 14.0), (15.5, 16.0), (18.0, 19.0)),
    ]
    assert counted(jobs, "continuing") == (5, 2, 2, 2)
    assert passed_over(jobs, 14.5)["continuing"]["most"] == 0


def test_first_turns_are_passed_over_by_first_turns() -> None:
    """Later turns, turns that never started and jobs that came together do not count as later."""
    jobs = [job("passed", (0.0, 30.0)), job("together", (0.0, 25.0))]
    jobs += [job("passes", (1.0, 20.0), (21.0, 22.0)), job("cut", (1.5, None))]
    assert counted(jobs, "first") == (3, 3, 2, 1)


def test_engines_do_not_compare() -> None:
    """Turns are compared with those of the same engine alone."""
    alone = [job("a", (0.0, 0.0), (1.0, 50.0), engine=0), job("b", (0.5, 40.0), engine=1)]
    assert passed_over(alone, 10.0)["continuing"]["passed_over"] == 0
    together = [job("a", (0.0, 0.0), (1.0, 50.0)), job("b", (0.5, 40.0))]
    assert passed_over(together, 10.0)["continuing"]["passed_over"] == 1


def test_a_job_whose_beginning_is_not_in_the_record_has_no_first_turn() -> None:
    """All turns of a job that began before the log are continuing ones."""
    begun = job("begun", (0.0, 30.0), (31.0, 32.0))
    begun.turns[0].turn, begun.turns[1].turn = None, 8
    found = passed_over([begun, job("later", (1.0, 25.0))], 10.0)
    assert (found["first"]["turns"], found["continuing"]["turns"]) == (1, 2)
    assert found["continuing"]["passed_over"] == 1
