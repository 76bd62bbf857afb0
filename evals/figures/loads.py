"""Which of a setting's loads get a panel of their own, and what stands above it."""

from __future__ import annotations

from .runs import Group

MAX_PANELS = 4


def shown_loads(group: Group) -> list[Group]:
    """At most MAX_PANELS parts of the group, evenly from the lightest to the heaviest load."""
    loads: list[float | None] = list(group.loads) or [None]
    if len(loads) > MAX_PANELS:
        step = (len(loads) - 1) / (MAX_PANELS - 1)
        loads = [loads[round(index * step)] for index in range(MAX_PANELS)]
    return [group.at(load) for load in loads]


def panel_title(part: Group) -> str:
    """The load in words; of runs at given times the workload's name."""
    load = part.runs[0].load
    if load is None:
        return part.setting.workload or "all jobs"
    if part.setting.load_kind == "concurrency":
        return f"{load:g} jobs at once"
    return f"{load:g} job{'' if load == 1 else 's'} per second"
