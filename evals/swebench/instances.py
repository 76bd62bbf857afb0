"""SWE-bench instances: read from a file, the hub or our own suite, chosen, and named by image.

Every other module here starts from them. Knows nothing about agents, servers or grading.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

CONTAINERS = ("docker", "podman")
KINDS = (*CONTAINERS, "bubblewrap", "local")
"""Where an agent's commands can run."""
DAEMON_LESS = "daemon-less"
MODES = (*CONTAINERS, DAEMON_LESS)
"""How patches can be graded; the last one without containers."""
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
    """Instances, a repository, a run's folder or an environment that cannot be used."""


class HarnessError(SwebenchError):
    """The official harness, or what it runs in, failed while it graded."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One task. `image` names its registry too; `raw` is the row as the harness wants it."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    fail_to_pass: tuple[str, ...]
    image: str
    raw: dict[str, Any]


def load_instances(source: str) -> list[Instance]:
    """Load all instances of a .json, .jsonl or .parquet file, of `verified`, `lite` or `demo`.

    Raises SwebenchError with the value seen.
    """
    rows = _rows(source)
    if not rows:
        raise SwebenchError(f"{source}: holds no instance")
    instances = [_instance(row, f"{source}: row {number}") for number, row in enumerate(rows)]
    counts = Counter(one.instance_id for one in instances)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise SwebenchError(f"{source}: {twice[0]} is there twice")
    return instances


def select(
    instances: Sequence[Instance], *, slice_: str | None = None, filter_: str | None = None
) -> list[Instance]:
    """Filter by a regular expression on the start of the id, then slice, as mini-swe-agent does.

    Raises SwebenchError for a malformed slice or expression, and if nothing is left.
    """
    try:
        chosen = [one for one in instances if re.match(filter_ or "", one.instance_id)]
        if slice_:
            chosen = chosen[slice(*(int(part) if part else None for part in slice_.split(":")))]
    except re.error as error:
        raise SwebenchError(f"filter {filter_!r}: is no regular expression: {error}") from error
    except (TypeError, ValueError) as error:
        allowed = "START:END or START:END:STEP"
        raise SwebenchError(f"slice: got {slice_!r}, allowed is {allowed}") from error
    if not chosen:
        ids = ", ".join(one.instance_id for one in instances[:3])
        raise SwebenchError(
            f"no instance is left of {len(instances)} (filter {filter_!r}, slice {slice_!r}); "
            f"their ids are {ids}, ..."
        )
    return chosen


def fingerprint(instances: Sequence[Instance]) -> str:
    """Return the SHA-256 of the instances' rows, the same for every kind of file."""
    text = json.dumps([one.raw for one in instances], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def image_name(row: Mapping[str, Any]) -> str:
    """Return the image that the instance names, else the official one, with its registry.

    Source: mini-swe-agent 2.4.6, run/benchmarks/swebench.py, `get_swebench_docker_image_name`; the
    field `image` is swebench 5's.
    """
    given = row.get("image_name") or row.get("docker_image") or row.get("image")
    if not given:
        token = str(row["instance_id"]).replace("__", "_1776_").lower()
        given = f"swebench/sweb.eval.x86_64.{token}:latest"
    host, slash, _ = str(given).partition("/")
    is_qualified = slash and ("." in host or ":" in host or host == "localhost")
    return str(given) if is_qualified else f"docker.io/{given}"


def _instance(row: Mapping[str, Any], where: str) -> Instance:
    if missing := [name for name in _REQUIRED if not row.get(name)]:
        found = ", ".join(map(str, row)) or "nothing"
        raise SwebenchError(f"{where} lacks {', '.join(missing)}; it has {found}")
    texts = {name: str(row[name]) for name in _REQUIRED}
    name = texts["instance_id"]
    is_file_name = name.isprintable() and "/" not in name and name not in (".", "..")
    if not is_file_name or len(name.encode()) > _MAX_ID_BYTES:
        raise SwebenchError(
            f"{where}: instance_id is {name[:80]!r}, allowed is what can be the name of a file, "
            f"of {_MAX_ID_BYTES} bytes at most"
        )
    tests = row.get("FAIL_TO_PASS") or []
    with suppress(ValueError):  # the official files hold the list as JSON text
        tests = json.loads(tests) if isinstance(tests, str) else tests
    if not isinstance(tests, list):
        seen = str(tests)[:80]
        raise SwebenchError(f"{where}: FAIL_TO_PASS is {seen!r}, allowed is a list of tests")
    return Instance(
        **texts,
        patch=str(row.get("patch") or ""),
        fail_to_pass=tuple(map(str, tests)),
        image=image_name(row),
        raw={**row, **texts},
    )


def _rows(source: str) -> list[Mapping[str, Any]]:
    if source in HUB_NAMES:
        return _rows_of_hub(HUB_NAMES[source])
    path = SUITE_FILE if source == SUITE else Path(source)
    if path.suffix not in _FILE_KINDS:
        kinds, names = ", ".join(_FILE_KINDS), ", ".join(HUB_NAMES)
        raise SwebenchError(f"{source}: allowed is a file ({kinds}), {names} or {SUITE}")
    rows: Any
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            rows = _plain(parquet.read_table(path).to_pylist())
        elif path.suffix == ".jsonl":
            # not splitlines: JSON text may contain other line ends, such as U+2028
            lines = path.read_text(encoding="utf-8-sig").split("\n")
            rows = [json.loads(line) for line in lines if line.strip()]
        else:
            rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:  # pyarrow's errors are among them
        raise SwebenchError(f"{path}: cannot be read: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SwebenchError(f"{path}: holds {type(rows).__name__}, allowed is a list of instances")
    return rows


def _rows_of_hub(name: str) -> list[Mapping[str, Any]]:
    from datasets import load_dataset

    try:
        return _plain([dict(row) for row in load_dataset(name, split="test")])
    except Exception as error:  # the hub's client raises many kinds; the advice is the same
        raise SwebenchError(
            f"{name} could not be fetched ({type(error).__name__}: {str(error)[:200]}): without a "
            "network, give its file instead (.parquet)"
        ) from error


def _plain(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Convert to JSON values: the harness reads a JSON file, and a column may hold dates."""
    return [json.loads(json.dumps(row, default=str)) for row in rows]
