"""SWE-bench instances as mini-swe-agent and the harness take them: loaded, chosen, their images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

Instance = dict[str, Any]
"""One row of a dataset, with the fields that SWE-bench names."""
SANDBOX = "bubblewrap"
DAEMON_LESS = "daemon-less"
"""How patches of the suite are graded without containers."""
SUITE = "demo"
SUITE_FILE = Path(__file__).parent / "suite" / "instances.json"
HUB_NAMES = {"verified": "SWE-bench/SWE-bench_Verified", "lite": "SWE-bench/SWE-bench_Lite"}
"""Source: the names that swebench 5.0.2's documentation gives; both have a split `test`."""
_FILE_KINDS = (".json", ".jsonl", ".parquet")
_REQUIRED = ("instance_id", "problem_statement", "repo", "base_commit")


class SwebenchError(AgentKVError):
    """Instances, a run's folder or an environment that cannot be used."""


def load_instances(source: str, slice_: str = "", filter_: str = "") -> list[Instance]:
    """Load a .json, .jsonl or .parquet file, `verified`, `lite` or `demo`; filter, then slice.

    The filter is a regular expression on the start of the id. Raises SwebenchError with the value
    seen, also if nothing is left.
    """
    from minisweagent.run.benchmarks.swebench import filter_instances

    if source not in (SUITE, *HUB_NAMES) and Path(source).suffix not in _FILE_KINDS:
        kinds, names = ", ".join(_FILE_KINDS), ", ".join(HUB_NAMES)
        raise SwebenchError(f"{source}: allowed is a file ({kinds}), {names} or {SUITE}")
    try:
        rows = _read(source)
        chosen: list[Instance] = filter_instances(rows, filter_spec=filter_, slice_spec=slice_)
    except Exception as error:  # the hub's client raises many kinds
        said = f"{type(error).__name__}: {str(error)[:200]}"
        wanted = f"filter {filter_!r}, slice {slice_!r}"
        raise SwebenchError(
            f"{source}: no instances can be read or chosen ({wanted}): {said}"
        ) from (error)
    if not chosen:
        raise SwebenchError(f"{source}: no instance is left of {len(rows)}")
    for row in chosen:
        if missing := [name for name in _REQUIRED if name not in row]:
            raise SwebenchError(f"{source}: an instance lacks {', '.join(missing)}")
    return chosen


def _read(source: str) -> list[Instance]:
    """Read the suite, or another source with the harness's reader, which takes long to import."""
    if source == SUITE:
        return list(json.loads(SUITE_FILE.read_text(encoding="utf-8")))
    from swebench.harness.utils import load_swebench_dataset

    # through JSON, which the harness reads again: a column of Parquet may hold dates
    loaded = load_swebench_dataset(HUB_NAMES.get(source, source), "test")
    return [json.loads(json.dumps(row, default=str)) for row in loaded]


def image_name(row: Instance) -> str:
    """Return the image that the instance names, else the official one, with its registry.

    mini-swe-agent knows all but the field `image`, which is swebench 5's.
    """
    from minisweagent.run.benchmarks.swebench import get_swebench_docker_image_name

    given = row.get("image_name") or row.get("docker_image") or row.get("image")
    name = str(get_swebench_docker_image_name({**row, "image_name": given}))
    host, slash, _ = name.partition("/")
    is_qualified = slash and ("." in host or ":" in host or host == "localhost")
    return name if is_qualified else f"docker.io/{name}"
