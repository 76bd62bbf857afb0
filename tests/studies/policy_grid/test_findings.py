"""What rows say: ratios, pressured regimes, targets, tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies.policy_grid.findings import STOCK, Findings, is_subject
from studies.policy_grid.report import draw, tables

from .made_rows import row

ROWS = [
    row("fcfs", 10.0, seed=0),
    row("fcfs", 20.0, seed=1),
    row("agentkv", 5.0, seed=0),
    row("agentkv", 5.0, seed=1),
    row("continuum:released", 0.0, error="RunError: x"),
]
BASELINES = {
    "fcfs": 10.0,
    "continuum:released": 4.0,
    "continuum:paper": 8.0,
    "fcfs@infinite": 3.0,
}


def targets(rows: list[dict[str, Any]], policy: str = "agentkv") -> dict[str, dict[str, Any]]:
    return {target["name"]: target for target in Findings(rows).targets(policy)}


def judged(seconds: float, **values: Any) -> dict[str, dict[str, Any]]:
    """The targets of a policy whose durations are `seconds`."""
    rows = [row(policy, s) for policy, s in BASELINES.items()]
    return targets([*rows, row("agentkv", seconds, **values)])


def report(rows: list[dict[str, Any]]) -> str:
    found = Findings(rows)
    return tables(found, found.document())


def test_ratios_are_between_the_same_jobs() -> None:
    """A ratio is taken seed by seed; a seed whose counterpart failed does not count."""
    rows = [row("fcfs", 10.0, seed=0), row("fcfs", 40.0, seed=1), row("agentkv", 5.0, seed=0)]
    rows += [row("agentkv", 80.0, seed=1), row("agentkv", 7.0, seed=2)]
    ratios = Findings(rows).ratios()["mean_s"].xs("agentkv", level="policy")
    assert ratios.dropna().tolist() == [0.5, 2.0]
    over_seeds = Findings(rows).over_seeds()["mean_s"].xs("agentkv", level="policy")
    assert over_seeds.tolist() == [pytest.approx(1.0)]


@pytest.mark.parametrize(("share", "is_pressured"), [(0.2, False), (0.201, True)])
def test_pressure_is_what_stock_recomputes(share: float, is_pressured: bool) -> None:
    """A regime is pressured if stock recomputes more than a fifth of its tokens there."""
    rows = [row("fcfs", 1.0, recomputed_share=share)]
    rows += [row("agentkv", 1.0, recomputed_share=1.0 - share)]
    assert bool(Findings(rows).pressured) is is_pressured
    assert not Findings([row("agentkv", 1.0)]).pressured


def test_regimes_are_ordered() -> None:
    """Pools and loads ascend, tools stay in the order of their rows."""
    places = [
        (tools, pool, load)
        for tools in ("recorded", "longtail")
        for pool in (3000, 9000)
        for load in ("light", "1x", "2x")
    ]
    shuffled = [*places[:1], *reversed(places[1:])]
    rows = [row("fcfs", 1.0, tools=t, pool_blocks=p, load=load) for t, p, load in shuffled]
    assert Findings(rows).regimes == places


def test_regimes_weigh_the_same() -> None:
    """Means over regimes are geometric, over those that have the policy; a zero makes a zero."""
    rows = [row("fcfs", 1.0, load=load) for load in ("light", "1x", "2x")]
    rows += [row("agentkv", 4.0, load="1x"), row("agentkv", 1.0, load="2x")]
    mean = Findings(rows).geometric_means(STOCK).loc[("recorded", "agentkv")]
    assert (mean["n"], mean["mean_s"]) == (2, pytest.approx(2.0))
    rows += [row("agentkv", 0.0, load="light")]
    assert Findings(rows).geometric_means(STOCK).loc[("recorded", "agentkv")]["mean_s"] == 0.0


@pytest.mark.parametrize(
    ("name", "most_s"),
    [
        ("recorded tools: mean JCT over fcfs", 4.0),
        ("recorded tools: p99 JCT over fcfs", 5.5),
        ("recorded tools: mean JCT over continuum:released", 3.68),
        ("recorded tools: p99 JCT over continuum:released", 3.88),
        ("recorded tools: mean JCT over fcfs@infinite", 3.9),
        ("recorded tools: max JCT over continuum:paper", 8.0),
        ("recorded tools: max slowdown over fcfs", 10.0),
        ("recorded tools: continuing TTFT p99 over fcfs", 2.5),
    ],
)
def test_a_target_is_met_up_to_its_limit(name: str, most_s: float) -> None:
    """A target is met just below its limit and missed just above."""
    assert judged(most_s * 0.999)[name]["is_met"] is True
    assert judged(most_s * 1.001)[name]["is_met"] is False


def test_figures_without_a_limit_are_shown() -> None:
    """First-turn TTFT and lossless runs are shown without a verdict, if they were played."""
    shown = judged(20.0)["recorded tools: first-turn TTFT max over fcfs"]
    assert (shown["value"], shown["is_met"]) == (pytest.approx(2.0), None)
    name = "recorded tools: mean JCT over agentkv@lossless"
    assert name not in judged(6.0)
    rows = [row("fcfs", 10.0), row("agentkv", 6.0), row("agentkv@lossless", 5.0)]
    assert targets(rows)[name]["value"] == pytest.approx(1.2)


def test_a_missing_measurement_is_neither_met_nor_missed() -> None:
    """Without a unit under light load, its target has no value and no verdict."""
    target = judged(1.0)["light load: largest distance of any figure from stock"]
    assert (target["value"], target["is_met"], target["n"]) == (None, None, 0)


def test_light_load_looks_at_every_figure() -> None:
    """Under light load the figure furthest from stock counts, in either direction."""
    rows = [row("fcfs", 10.0, load="light"), row("agentkv", 10.0, load="light", p90_s=9.8)]
    target = targets(rows)["light load: largest distance of any figure from stock"]
    assert target["value"] == pytest.approx(0.02)
    assert target["is_met"] is False
    assert target["worst"].endswith("recorded, 3,000 blocks, light")


def test_light_load_allows_no_further_preemption() -> None:
    """One preemption more than stock with one seed misses the target, even if another has fewer."""
    rows = [row("fcfs", 1.0, load="light", seed=seed, preemptions=2) for seed in (0, 1)]
    rows += [row("agentkv", 1.0, load="light", seed=0, preemptions=0)]
    rows += [row("agentkv", 1.0, load="light", seed=1, preemptions=3)]
    target = targets(rows)["light load: preemptions beyond stock's"]
    assert (target["value"], target["is_met"]) == (1.0, False)
    assert target["worst"].endswith("light, seed 1")


def test_the_smallest_pool_counts_by_its_worst_regime() -> None:
    """In the smallest pool the better of stock and the released rules is the yardstick."""
    released_s = {"1x": 5.0, "2x": 20.0}
    rows = [row("fcfs", 10.0, load=load) for load in released_s]
    rows += [row("continuum:released", seconds, load=load) for load, seconds in released_s.items()]
    rows += [row("agentkv", 5.0, load="1x"), row("agentkv", 11.0, load="2x")]
    rows += [row(policy, 1.0, pool_blocks=9000) for policy in ("fcfs", "continuum:released")]
    rows += [row("agentkv", 9.0, pool_blocks=9000)]
    [target] = [t for name, t in targets(rows).items() if "the better of" in name]
    assert target["value"] == pytest.approx(1.1)
    assert target["worst"].endswith("3,000 blocks, 2x")


def test_regimes_without_pressure_show_the_worst() -> None:
    """The worst regime without pressure is shown, without a limit."""
    rows = [row("fcfs", 10.0, load=load, recomputed_share=0.01) for load in ("light", "1x")]
    rows += [row("agentkv", 9.0, load="light"), row("agentkv", 12.0, load="1x")]
    [target] = [t for name, t in targets(rows).items() if "no pressure" in name]
    assert (target["value"], target["is_met"]) == (pytest.approx(1.2), None)


def test_ablations_have_targets_too() -> None:
    """Targets are judged for agentkv with any settings, not for other policies or pools."""
    names = ("agentkv", 'agentkv{"without":["order"]}', "agentkv@infinite", "fcfs")
    assert [is_subject(name) for name in names] == [True, True, False, False]


def test_tables_show_spread_targets_and_failures() -> None:
    """The tables have each ratio with its spread, the verdicts and the number of failures."""
    text = report(ROWS)
    assert "0.354 (0.250..0.500)" in text
    assert "1 of 5 units failed" in text
    assert "- [x] recorded tools: mean JCT over fcfs (at most 0.4): **0.354** (1 place;" in text
    assert "3,000 blocks, 1x (0.1/s): pressured (50.0% recomputed)" in text
    [failure] = Findings(ROWS).document()["failed_units"]
    assert (failure["policy"], failure["error"]) == ("continuum:released", "RunError: x")


def test_tables_warn_of_unequal_rows() -> None:
    """The tables warn of two versions of the code, and of means over different regimes."""
    assert "2 versions of the code" in report([*ROWS[:2], {**ROWS[2], "code": "fff"}])
    warning = "Means over different numbers of regimes are not to be compared."
    assert warning in report([*ROWS, row("fcfs", 1.0, load="2x")])
    assert warning not in report(ROWS)


def test_a_study_whose_units_all_failed_has_tables() -> None:
    """Tables can be made if every unit failed."""
    assert "1 of 1 units failed" in report(ROWS[-1:])


def test_there_is_a_figure_for_each_kind_of_tools(tmp_path: Path) -> None:
    """Each kind of tools gets a figure, also with policies that no figure has a look for."""
    rows = [*ROWS, row('agentkv{"x":1}', 3.0), row('agentkv{"x":2}', 2.0)]
    rows += [row("fcfs", 1.0, tools="a b.jsonl"), row("agentkv", 2.0, tools="a b.jsonl")]
    found = Findings(rows)
    paths = draw(found, found.document(), tmp_path)
    assert [path.name for path in paths] == ["ratios-recorded.png", "ratios-a-b.jsonl.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
