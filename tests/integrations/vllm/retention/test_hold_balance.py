"""When idle KV counts in full for a new job, and when less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.integrations.vllm.retention.admission import DISCOUNT_PRIOR, IdleKVDiscount

MEMORY_S = 100.0
PRIOR_S = DISCOUNT_PRIOR * MEMORY_S


def ask(balance: IdleKVDiscount, now_s: float, *, idle_share: float, held: bool = True) -> float:
    balance.asked(now_s, is_held_back=held, idle_share=idle_share, memory_s=MEMORY_S)
    return balance.idle_kv_weight


def held_back(
    balance: IdleKVDiscount, *, until_s: float, idle_share: float, from_s: int = 0
) -> float:
    """A job asks ten times a second and is not let in; the weight at the end."""
    for tenth in range(from_s * 10, round(until_s * 10) + 1):
        weight = ask(balance, tenth / 10, idle_share=idle_share)
    return weight


def test_before_anything_is_seen_idle_kv_counts_in_full() -> None:
    """Also with the first job that is held back, however much is idle."""
    balance = IdleKVDiscount()
    assert balance.idle_kv_weight == 1.0
    assert ask(balance, 50.0, idle_share=1.0) == 1.0


def test_it_counts_less_while_a_job_waits_beside_it() -> None:
    """Half of the pool for 10 s is 5 s of all of it, less what is forgotten of that by then."""
    balance = IdleKVDiscount()
    assert held_back(balance, until_s=10, idle_share=0.5) == pytest.approx(
        PRIOR_S / (PRIOR_S + 5.0), abs=0.02
    )


def test_what_is_held_while_nobody_waits_costs_nothing() -> None:
    """Neither with jobs that are let in nor once the one that waited has gone."""
    balance = IdleKVDiscount()
    for second in range(50):
        assert ask(balance, second, idle_share=0.9, held=False) == 1.0
    ask(balance, 50.0, idle_share=0.9)
    balance.left()
    assert ask(balance, 80.0, idle_share=0.9) == 1.0


def test_what_it_takes_to_come_back_makes_it_count_again() -> None:
    """As much of that as of holding weighs it in full, and more no more than that."""
    balance = IdleKVDiscount()
    low = held_back(balance, until_s=20, idle_share=0.5)
    balance.restored(20.0, 4.0)
    assert low < balance.idle_kv_weight < 1.0
    balance.restored(20.0, 60.0)
    assert balance.idle_kv_weight == 1.0


def test_the_past_is_forgotten() -> None:
    """After ten times the memory it is as at the beginning."""
    balance = IdleKVDiscount()
    assert held_back(balance, until_s=20, idle_share=0.9) < 0.2
    balance.left()
    assert ask(balance, 20 + 10 * MEMORY_S, idle_share=0.9) == pytest.approx(1.0, abs=0.01)


def test_where_computing_costs_nothing_idle_kv_counts_in_full() -> None:
    """No prefill has been measured: there is nothing to weigh."""
    balance = IdleKVDiscount()
    for second in range(9):
        balance.asked(float(second), is_held_back=True, idle_share=1.0, memory_s=0.0)
    balance.restored(9.0, 0.0)
    assert 0.0 <= balance.idle_kv_weight <= 1.0


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e6),
            st.booleans(),
            st.floats(0, 1),
            st.floats(0, 1e5),
            st.none() | st.floats(0, 1e4),
        ),
        max_size=40,
    )
)
def test_it_is_a_share_whatever_happens(
    happenings: list[tuple[float, bool, float, float, float | None]],
) -> None:
    """From 0 to 1, for any order of events and any gap between them."""
    balance, now_s = IdleKVDiscount(), 0.0
    for elapsed_s, is_held_back, idle_share, memory_s, back_s in happenings:
        now_s += elapsed_s
        balance.asked(now_s, is_held_back=is_held_back, idle_share=idle_share, memory_s=memory_s)
        if back_s is not None:
            balance.restored(now_s, back_s)
        assert 0.0 <= balance.idle_kv_weight <= 1.0
