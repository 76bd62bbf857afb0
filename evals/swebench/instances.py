"""SWE-bench instances as mini-swe-agent and the harness take them, loaded, checked, chosen."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

Instance = dict[str, Any]
"""One row of a dataset, with the fields that SWE-bench names."""
CONTAINERS = ("docker", "podman")
SANDBOX = "bubblewrap"
DAEMON_LESS = "daemon-less"
"""How patches of the suite are graded without containers."""
SUITE = "demo"
SUITE_FILE = Path(__file__).parent / "suite" / "instances.json"
HUB_NAMES = {"verified": "SWE-bench/SWE-bench_Verified", "lite": "SWE-bench/SWE-bench_Lite"}
"""Source: the names that swebench 5.0.2's documentation gives; both have a split `test`."""
_FILE_KINDS = (".json", ".jsonl", ".parquet")
_REQUIRED = ("instance_id", "problem_statement", "repo", "base_commit")
_FILE_NAME = re.compile(r"[\w.+@-]{0,199}[\w+@-]", re.ASCII)
"""Files and jobs are named after an instance; both end at 255 bytes."""


class SwebenchError(AgentKVError):
    """Instances, a run's folder or an environment that cannot be used."""


def load_instances(source: str, slice_: str = "", filter_: str = "") -> list[Instance]:
    """Load a .json, .jsonl or .parquet file, `verified`, `lite` or `demo`; filter, then slice.

    The filter is a regular expression on the start of the id. Raises SwebenchError with the value
    seen, also if nothing is left.
    """
    name = {**HUB_NAMES, SUITE: str(SUITE_FILE)}.get(source)
    if name is None and Path(source).suffix not in _FILE_KINDS:
        kinds, names = ", ".join(_FILE_KINDS), ", ".join(HUB_NAMES)
        raise SwebenchError(f"{source}: allowed is a file ({kinds}), {names} or {SUITE}")
    try:
        rows = _read(name or source)
        counts = Counter(row.get("instance_id") for row in rows)
    except Exception as error:  # the hub's client raises many kinds
        said = f"{type(error).__name__}: {str(error)[:200]}"
        raise SwebenchError(f"{source}: cannot be read as a list of instances ({said})") from error
    for number, row in enumerate(rows):
        if missing := [name for name in _REQUIRED if not isinstance(row.get(name), str)]:
            raise SwebenchError(f"{source}: row {number} lacks {', '.join(missing)}")
        if not _FILE_NAME.fullmatch(row["instance_id"]):
            seen = f"instance_id is {row['instance_id'][:80]!r}"
            raise SwebenchError(f"{source}: row {number}: {seen}, which cannot name a file")
    if not rows or max(counts.values()) > 1:
        what = f"{counts.most_common(1)[0][0]} is there twice" if rows else "holds no instance"
        raise SwebenchError(f"{source}: {what}")
    wanted = f"filter {filter_!r}, slice {slice_!r}"
    try:
        bounds = [int(bound) if bound else None for bound in slice_.split(":")]
        chosen = [row for row in rows if re.match(filter_, row["instance_id"])]
        chosen = chosen[slice(*bounds)] if slice_ else chosen
    except (re.error, TypeError, ValueError) as error:
        allowed = "a regular expression, and START:END or START:END:STEP"
        raise SwebenchError(f"{wanted}: {error}; allowed are {allowed}") from error
    if not chosen:
        ids = ", ".join(row["instance_id"] for row in rows[:3])
        raise SwebenchError(f"no instance is left of {len(rows)} ({wanted}), such as {ids}")
    return chosen


def _read(name: str) -> list[Instance]:
    """Read a file here, or another source with the harness's reader, which takes long to import."""
    if name.endswith(".json"):
        return list(json.loads(Path(name).read_text(encoding="utf-8")))
    if name.endswith(".jsonl"):
        lines = Path(name).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]
    from swebench.harness.utils import load_swebench_dataset

    # through JSON, which the harness reads again: a column of Parquet may hold dates
    loaded = load_swebench_dataset(name, "test")
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
