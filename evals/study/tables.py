"""A study's tables, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
_RATIOS = (
    ("mean", "mean_s"),
    ("p99", "p99_s"),
    ("max", "max_s"),
    ("max slowdown", "slowdown_max"),
    ("first TTFT p99", "ttft_first_p99_s"),
    ("its max", "ttft_first_max_s"),
    ("next TTFT p99", "ttft_continuing_p99_s"),
    ("its max", "ttft_continuing_max_s"),
)


def tables(found: Document) -> str:
    """Conditions, geometric means over the pressured regimes, and each regime."""
    return "\n".join([*_head(found), *_means(found), *_regimes(found)]) + "\n"


def _head(found: Document) -> Iterator[str]:
    config = found["config"]
    machine = config.get("machine", {})
    yield "# Study of policies"
    yield ""
    yield (
        f"{config.get('num_jobs')} jobs a unit of {config.get('trace') or config.get('workload')} "
        f"(part: {config.get('part')}), at most {config.get('max_turns')} turns, on a simulated "
        f"{machine.get('name')} with {machine.get('model')}; seeds "
        f"{', '.join(map(str, found['seeds']))}; commit {', '.join(found['commits'])}."
    )
    if len(found["codes"]) > 1:
        yield f"Rows were made by {len(found['codes'])} versions of the code."
    if found["failed_units"]:
        yield f"{len(found['failed_units'])} of {found['units']} units failed."


def _means(found: Document) -> Iterator[str]:
    places = dict.fromkeys((mean["to"], mean["tools"]) for mean in found["geometric_means"])
    for to, tools in places:
        means = [m for m in found["geometric_means"] if (m["to"], m["tools"]) == (to, tools)]
        yield ""
        yield f"## {tools} tools, over {to}: geometric means over pressured regimes"
        yield ""
        rows = [
            [mean["policy"], str(mean["n"]), *(_number(mean[key]) for _, key in _RATIOS)]
            for mean in means
        ]
        yield from _table(["policy", "regimes", *(title for title, _ in _RATIOS)], rows)


def _regimes(found: Document) -> Iterator[str]:
    titles = ["policy", "mean s", *(title for title, _ in _RATIOS), "hits", "preempted"]
    for tools in dict.fromkeys(regime["tools"] for regime in found["regimes"]):
        yield ""
        yield f"## {tools} tools, each regime: ratios to fcfs in the same cell"
        for regime in (r for r in found["regimes"] if r["tools"] == tools):
            yield ""
            yield f"### {regime['pool_blocks']:,} blocks, {regime['load_label']}{_pressure(regime)}"
            yield ""
            rows = [_policy_row(name, entry) for name, entry in regime["policies"].items()]
            yield from _table(titles, rows)


def _pressure(regime: Document) -> str:
    share = regime["recomputed_share"]
    if share is None:
        return ""
    return f": {'pressured' if regime['is_pressured'] else 'no pressure'} ({share:.1%} recomputed)"


def _policy_row(name: str, entry: Document) -> list[str]:
    values, ratios = entry["values"], entry["ratios"]
    hits, mean_s = values["hit_rate"], values["mean_s"]
    preemptions = values["preemptions"]
    return [
        name,
        "-" if mean_s is None else f"{mean_s['mean']:.1f}",
        *(_spread(ratios[key]) for _, key in _RATIOS),
        "-" if hits is None else f"{hits['mean']:.1%}",
        "-" if preemptions is None else f"{preemptions['mean']:.0f}",
    ]


def _spread(ratio: Document | None) -> str:
    if ratio is None:
        return "-"
    if ratio["n"] == 1 or ratio["least"] == ratio["most"]:
        return _number(ratio["mean"])
    return f"{_number(ratio['mean'])} ({_number(ratio['least'])}..{_number(ratio['most'])})"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 2.0 else f"{value:.3g}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
