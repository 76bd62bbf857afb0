"""SWE-bench instances: from a file, the hub or our own suite; which of them; under which image.

Knows nothing about agents, servers or grading. `raw` keeps what the harness wants, unchanged.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SwebenchError
from .suite import SUITE_FILE

SUITE = "demo"
HUB_NAMES = {"verified": "SWE-bench/SWE-bench_Verified", "lite": "SWE-bench/SWE-bench_Lite"}
"""Source: the names that swebench 5.0.2's documentation gives; both have a split `test`."""
FILE_KINDS = (".json", ".jsonl", ".parquet")
_NEEDED = ("instance_id", "problem_statement", "repo", "base_commit")
_SHOWN_IDS = 3
_MAX_ID_BYTES = 200
"""Files and jobs are named after an instance, of which both take 255 or 256 bytes in all."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One task. `image` is where a container for it comes from, with its registry."""

    instance_id: str
    repo: str
    version: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    image: str | None
    eval_script: str | None
    raw: dict[str, Any]


def load_instances(source: str) -> list[Instance]:
    """All instances of a .json, .jsonl or .parquet file, of `verified` or `lite`, or of `demo`.

    Raises SwebenchError, which says what was seen.
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
    """Those whose id matches the regular expression from its start, and of them the slice.

    Raises SwebenchError for a malformed slice or expression, and if nothing is left.
    """
    chosen = list(instances)
    try:
        if filter_:
            pattern = re.compile(filter_)
            chosen = [one for one in chosen if pattern.match(one.instance_id)]
        if slice_:
            chosen = chosen[_slice(slice_)]
    except re.error as error:
        raise SwebenchError(f"filter {filter_!r}: is no regular expression: {error}") from error
    if not chosen:
        ids = ", ".join(one.instance_id for one in instances[:_SHOWN_IDS])
        raise SwebenchError(
            f"no instance is left of {len(instances)} (filter {filter_!r}, slice {slice_!r}); "
            f"their ids are {ids}, ..."
        )
    return chosen


def fingerprint(instances: Sequence[Instance]) -> str:
    """SHA-256 of what the instances say, whatever kind of file they came from."""
    text = json.dumps([one.raw for one in instances], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def image_name(row: Mapping[str, Any]) -> str:
    """The image that the instance names, else the official one; always with its registry.

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
    missing = [name for name in _NEEDED if not row.get(name)]
    if missing:
        raise SwebenchError(
            f"{where} lacks {', '.join(missing)}; it has {', '.join(map(str, row)) or 'nothing'}"
        )
    return Instance(
        instance_id=_id(row, where),
        repo=str(row["repo"]),
        version=str(row.get("version") or ""),
        base_commit=str(row["base_commit"]),
        problem_statement=str(row["problem_statement"]),
        patch=str(row.get("patch") or ""),
        test_patch=str(row.get("test_patch") or ""),
        fail_to_pass=_names(row, "FAIL_TO_PASS", where),
        pass_to_pass=_names(row, "PASS_TO_PASS", where),
        image=image_name(row),
        eval_script=row.get("eval_script") or None,
        raw=dict(row),
    )


def _id(row: Mapping[str, Any], where: str) -> str:
    found = str(row["instance_id"])
    is_file_name = found.isprintable() and "/" not in found and found not in (".", "..")
    if not is_file_name or len(found.encode()) > _MAX_ID_BYTES:
        raise SwebenchError(
            f"{where}: instance_id is {found[:80]!r}, allowed is what can be the name of a file, "
            f"of {_MAX_ID_BYTES} bytes at most"
        )
    return found


def _names(row: Mapping[str, Any], field: str, where: str) -> tuple[str, ...]:
    """Names of tests: a list, or a list as JSON text, as the official files have it."""
    given = row.get(field)
    try:
        names = json.loads(given) if isinstance(given, str) and given else given or []
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise SwebenchError(f"{where}: {field} is {str(given)[:80]!r}, allowed is a list of tests")
    return tuple(map(str, names))


def _slice(text: str) -> slice:
    parts = text.split(":")
    try:
        numbers = [int(part) if part else None for part in parts]
    except ValueError:
        numbers = []
    if not 2 <= len(numbers) <= 3 or (len(numbers) == 3 and numbers[-1] == 0):
        raise SwebenchError(f"slice: got {text!r}, allowed is START:END or START:END:STEP")
    return slice(*numbers)


def _rows(source: str) -> list[Mapping[str, Any]]:
    if source == SUITE:
        return _rows_of_file(SUITE_FILE)
    if source in HUB_NAMES:
        return _rows_of_hub(HUB_NAMES[source])
    path = Path(source)
    if path.suffix not in FILE_KINDS:
        raise SwebenchError(
            f"{source}: allowed is a file ({', '.join(FILE_KINDS)}), "
            f"{', '.join(HUB_NAMES)} or {SUITE}"
        )
    return _rows_of_file(path)


def _rows_of_file(path: Path) -> list[Mapping[str, Any]]:
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            rows = _plain(parquet.read_table(path).to_pylist())
        elif path.suffix == ".jsonl":
            # not splitlines: JSON text may hold its other line ends, U+2028 say, as they are
            lines = path.read_text(encoding="utf-8-sig").split("\n")
            rows = [json.loads(line) for line in lines if line.strip()]
        else:
            rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:  # pyarrow's errors are among them
        raise SwebenchError(f"{path}: cannot be read: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SwebenchError(f"{path}: holds {type(rows).__name__}, allowed is a list of instances")
    return rows


def _plain(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As JSON has them: the harness reads a file of them, and a column may hold dates."""
    return [json.loads(json.dumps(row, default=str)) for row in rows]


def _rows_of_hub(name: str) -> list[Mapping[str, Any]]:
    from datasets import load_dataset

    try:
        return _plain([dict(row) for row in load_dataset(name, split="test")])
    except Exception as error:  # whatever the hub's client raises, the way out is the same
        raise SwebenchError(
            f"{name} could not be fetched ({type(error).__name__}: {str(error)[:200]}): without a "
            "network, give its file instead (.parquet)"
        ) from error
