"""SWE-bench instances: read from a file, the hub or our own suite, chosen, and named by image.

Every other module here starts from them. Knows nothing about agents, servers or grading.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
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
_FILE_KINDS = (".json", ".jsonl", ".parquet")
_REQUIRED = ("instance_id", "problem_statement", "repo", "base_commit")
_SHOWN_IDS = 3
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
    seen: set[str] = set()
    for instance in instances:
        if instance.instance_id in seen:
            raise SwebenchError(f"{source}: {instance.instance_id} is there twice")
        seen.add(instance.instance_id)
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
        raise SwebenchError(
            f"slice: got {slice_!r}, allowed is START:END or START:END:STEP"
        ) from error
    if not chosen:
        ids = ", ".join(one.instance_id for one in instances[:_SHOWN_IDS])
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
    missing = [name for name in _REQUIRED if not row.get(name)]
    if missing:
        raise SwebenchError(
            f"{where} lacks {', '.join(missing)}; it has {', '.join(map(str, row)) or 'nothing'}"
        )
    name = str(row["instance_id"])
    is_file_name = name.isprintable() and "/" not in name and name not in (".", "..")
    if not is_file_name or len(name.encode()) > _MAX_ID_BYTES:
        raise SwebenchError(
            f"{where}: instance_id is {name[:80]!r}, allowed is what can be the name of a file, "
            f"of {_MAX_ID_BYTES} bytes at most"
        )
    return Instance(
        instance_id=name,
        repo=str(row["repo"]),
        base_commit=str(row["base_commit"]),
        problem_statement=str(row["problem_statement"]),
        patch=str(row.get("patch") or ""),
        fail_to_pass=_test_names(row.get("FAIL_TO_PASS"), where),
        image=image_name(row),
        raw=dict(row),
    )


def _test_names(given: Any, where: str) -> tuple[str, ...]:
    """Read a list of tests, which the official files hold as JSON text."""
    try:
        names = json.loads(given) if isinstance(given, str) and given else given or []
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise SwebenchError(
            f"{where}: FAIL_TO_PASS is {str(given)[:80]!r}, allowed is a list of tests"
        )
    return tuple(map(str, names))


def _rows(source: str) -> list[Mapping[str, Any]]:
    if source in HUB_NAMES:
        return _rows_of_hub(HUB_NAMES[source])
    path = SUITE_FILE if source == SUITE else Path(source)
    if path.suffix not in _FILE_KINDS:
        raise SwebenchError(
            f"{source}: allowed is a file ({', '.join(_FILE_KINDS)}), "
            f"{', '.join(HUB_NAMES)} or {SUITE}"
        )
    try:
        rows = _rows_of_file(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are among them
        raise SwebenchError(f"{path}: cannot be read: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SwebenchError(f"{path}: holds {type(rows).__name__}, allowed is a list of instances")
    return rows


def _rows_of_file(path: Path) -> Any:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return _plain(parquet.read_table(path).to_pylist())
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".jsonl":
        # not splitlines: JSON text may contain other line ends, such as U+2028
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    return json.loads(text)


def _plain(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Convert to JSON values: the harness reads a JSON file, and a column may hold dates."""
    return [json.loads(json.dumps(row, default=str)) for row in rows]


def _rows_of_hub(name: str) -> list[Mapping[str, Any]]:
    from datasets import load_dataset

    try:
        return _plain([dict(row) for row in load_dataset(name, split="test")])
    except Exception as error:  # the hub's client raises many kinds; the advice is the same
        raise SwebenchError(
            f"{name} could not be fetched ({type(error).__name__}: {str(error)[:200]}): without a "
            "network, give its file instead (.parquet)"
        ) from error
