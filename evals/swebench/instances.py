"""SWE-bench instances: rows as mini-swe-agent and the harness take them, loaded, checked, chosen.

Every other module here starts from them. Knows nothing about agents, servers or grading.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

Instance = dict[str, Any]
"""One row of a dataset, with the fields that SWE-bench names."""
CONTAINERS = ("docker", "podman")
SANDBOX = "bubblewrap"
DAEMON_LESS = "daemon-less"
MODES = (CONTAINERS[0], DAEMON_LESS)
"""How patches can be graded; the last one without containers, for the suite."""
SUITE = "demo"
SUITE_FILE = Path(__file__).parent / "suite" / "instances.json"
HUB_NAMES = {"verified": "SWE-bench/SWE-bench_Verified", "lite": "SWE-bench/SWE-bench_Lite"}
"""Source: the names that swebench 5.0.2's documentation gives; both have a split `test`."""
TIME_LIMIT_S = 1800
"""Seconds for the tests of an instance. Source: swebench 5.0.2, its default."""
_FILE_KINDS = (".json", ".jsonl", ".parquet")
_REQUIRED = ("instance_id", "problem_statement", "repo", "base_commit")
_MAX_ID_BYTES = 200  # files and jobs are named after an instance; both end at 255 bytes


class SwebenchError(AgentKVError):
    """Instances, a run's folder or an environment that cannot be used."""


class HarnessError(SwebenchError):
    """The official harness, or what it runs in, failed while it graded."""


def load_instances(source: str) -> list[Instance]:
    """Load all instances of a .json, .jsonl or .parquet file, of `verified`, `lite` or `demo`.

    Raises SwebenchError with the value seen.
    """
    name = {**HUB_NAMES, SUITE: str(SUITE_FILE)}.get(source)
    if name is None and Path(source).suffix not in _FILE_KINDS:
        kinds, names = ", ".join(_FILE_KINDS), ", ".join(HUB_NAMES)
        raise SwebenchError(f"{source}: allowed is a file ({kinds}), {names} or {SUITE}")
    from swebench.harness.utils import load_swebench_dataset

    try:  # through JSON, which the harness reads again: a column of Parquet may hold dates
        loaded = load_swebench_dataset(name or source, "test")
        rows = [json.loads(json.dumps(row, default=str)) for row in loaded]
    except Exception as error:  # the hub's client raises many kinds
        said = f"{type(error).__name__}: {str(error)[:200]}"
        raise SwebenchError(f"{source}: cannot be read as a list of instances ({said})") from error
    for number, row in enumerate(rows):
        _check(row, f"{source}: row {number}")
    counts = Counter(row["instance_id"] for row in rows)
    if not counts or max(counts.values()) > 1:
        what = f"{counts.most_common(1)[0][0]} is there twice" if counts else "holds no instance"
        raise SwebenchError(f"{source}: {what}")
    return rows


def _check(row: Instance, where: str) -> None:
    if missing := [name for name in _REQUIRED if not isinstance(row.get(name), str)]:
        raise SwebenchError(f"{where} lacks {', '.join(missing)}; it has {', '.join(row)}")
    name = row["instance_id"]
    is_file_name = name.isprintable() and "/" not in name and name not in ("", ".", "..")
    if not is_file_name or len(name.encode()) > _MAX_ID_BYTES:
        raise SwebenchError(
            f"{where}: instance_id is {name[:80]!r}, allowed is what can be the name of a file, "
            f"of {_MAX_ID_BYTES} bytes at most"
        )


def select(
    instances: Sequence[Instance], *, slice_: str | None = None, filter_: str | None = None
) -> list[Instance]:
    """Filter by a regular expression on the start of the id, then slice, as mini-swe-agent does.

    Raises SwebenchError for a malformed slice or expression, and if nothing is left.
    """
    from minisweagent.run.benchmarks.swebench import filter_instances

    wanted = f"filter {filter_!r}, slice {slice_!r}"
    try:
        chosen: list[Instance] = filter_instances(
            list(instances), filter_spec=filter_ or "", slice_spec=slice_ or ""
        )
    except (re.error, TypeError, ValueError) as error:
        allowed = "a regular expression, and START:END or START:END:STEP"
        raise SwebenchError(f"{wanted}: {error}; allowed are {allowed}") from error
    if not chosen:
        ids = ", ".join(one["instance_id"] for one in instances[:3])
        raise SwebenchError(f"no instance is left of {len(instances)} ({wanted}), such as {ids}")
    return chosen


def fingerprint(instances: Sequence[Instance]) -> str:
    """Return the SHA-256 of the rows, the same for every kind of file."""
    return hashlib.sha256(json.dumps(instances, sort_keys=True).encode()).hexdigest()


def image_name(row: Mapping[str, Any]) -> str:
    """Return the image that the instance names, else the official one, with its registry.

    mini-swe-agent knows all but the field `image`, which is swebench 5's.
    """
    from minisweagent.run.benchmarks.swebench import get_swebench_docker_image_name

    given = row.get("image_name") or row.get("docker_image") or row.get("image")
    name = str(get_swebench_docker_image_name({**row, "image_name": given}))
    host, slash, _ = name.partition("/")
    is_qualified = slash and ("." in host or ":" in host or host == "localhost")
    return name if is_qualified else f"docker.io/{name}"
