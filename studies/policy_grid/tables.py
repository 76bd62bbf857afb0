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
    ("tokens/s", "tokens_per_s"),
)


def tables(found: Document) -> str:
    """Conditions, targets, geometric means over the pressured regimes, and each regime."""
    parts = (_head, _targets, _means, _regimes, _one_x)
    return "\n".join(line for part in parts for line in part(found)) + "\n"


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


def _targets(found: Document) -> Iterator[str]:
    for policy, lines in found["targets"].items():
        measured = [line for line in lines if line["is_met"] is not None]
        num_met = sum(line["is_met"] for line in measured)
        yield ""
        yield f"## Targets of {policy}: {num_met} of {len(measured)} met"
        yield ""
        for line in lines:
            yield _target(line)


def _target(line: Document) -> str:
    limit = "" if line["limit"] is None else f" (at most {line['limit']:g})"
    if line["value"] is None:
        return f"- [ ] {line['name']}{limit}: not measured"
    mark = "" if line["is_met"] is None else "[x] " if line["is_met"] else "[ ] "
    regimes = f"{line['num_regimes']} regime{'' if line['num_regimes'] == 1 else 's'}"
    value = f"**{line['value']:.3f}**"
    return f"- {mark}{line['name']}{limit}: {value} ({regimes}; worst {line['worst']})"


def _one_x(found: Document) -> Iterator[str]:
    yield ""
    yield "## 1x"
    yield ""
    titles = ["tools", "blocks", "memory jobs/s", "compute jobs/s", "contexts that fit"]
    rows = [
        [
            entry["tools"],
            f"{entry['pool_blocks']:,}",
            f"{entry['memory_jps']:.4f}",
            f"{entry['compute_jps']:.4f}",
            f"{entry['num_resident']:.1f}",
        ]
        for entry in found["one_x"]
    ]
    yield from _table(titles, rows)


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
        if len({mean["n"] for mean in means}) > 1:
            yield ""
            yield "Means over different numbers of regimes are not to be compared."


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
