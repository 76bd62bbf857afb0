"""The commands print the same JSON documents, take the same flags and end with the same status."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.evals.fake_vllm import FakeVllm
from tests.golden.harness import Golden, document_of, masked, run_command

pytestmark = pytest.mark.slow

INPUTS = Path(__file__).parent / "inputs"
TIMES = (
    r".*_s|.*_ms|.*_at|job_durations|commit|versions?|run_id|out|run|markdown|json|figure|file|"
    r"platform|num_cpus|base_url|.*_version|tokens_per_s|per_turn_llm_mean_s|server_log|argv"
)
PREDICTED = ("ls -la", "pip install torch", "pytest -q | tail -3", "sleep 30", "frobnicate")
SMALL = ("--token-scale", "0.2", "--turns", "3", "--jobs", "4", "--concurrency", "1")
COMMANDS = (
    *("doctor", "top", "verify-pin", "bench", "compare", "simulate", "simulate calibrate"),
    *("record", "report", "plot", "predict", "swebench run", "swebench eval", "swebench report"),
    *("swebench demo", "prepare-model", "explain"),
)
NOBODY = "http://127.0.0.1:9/v1"
REFUSED = (
    *("", "no-such-command", "predict", "predict --kind nonsense ls"),
    *("predict --state /no/such/file ls", f"bench --base-url {NOBODY} --jobs 1"),
    *("bench --policy lifo", "bench --jobs 0", "compare --policy lifo", "compare --jps -1"),
    *("simulate", "simulate --gpu abacus", "simulate --gpu rtx-5090 --policy lifo"),
    *("record /no/such/file", "plot /no/such/folder --out /tmp/never"),
    *(f"verify-pin --base-url {NOBODY}", "verify-pin", "swebench", "swebench nonsense"),
    *("swebench report /no/such/folder", "swebench eval /no/such/folder"),
    "swebench demo --model scripted:gold --policy fcfs",
)


@pytest.mark.parametrize("kind", ["default", "context_serve"])
def test_predict(golden: Golden, kind: str) -> None:
    """`predict` gives the same document, from arguments and from standard input."""
    flags = ("predict", "--json", "--kind", kind)
    document = masked(document_of(*flags, *PREDICTED))
    assert masked(document_of(*flags, "-", stdin="\n".join(PREDICTED))) == document
    golden.check(f"predict {kind}", document)


def test_bench_in_replay(golden: Golden, tmp_path: Path) -> None:
    """`bench` on a vLLM-like server prints the same document and writes the same rows."""
    with FakeVllm(policy="continuum") as server:
        flags = ("--base-url", server.base_url, "--out", str(tmp_path), *SMALL)
        document = document_of("bench", *flags, "--json")
    golden.check("bench", masked(document, TIMES))
    lines = (tmp_path / "turns.jsonl").read_text().splitlines()
    rows = [masked(json.loads(line), TIMES + "|config") for line in lines]
    rows.sort(key=lambda row: (row["job_id"], row["turn"]))
    golden.check("bench row", rows[0])
    fields = ("job_id", "turn", "job_status", "prompt_tokens", "cached_tokens", "output_digest")
    golden.check("bench rows", [[row[name] for name in fields] for row in rows])


def test_bench_in_live_mode(golden: Golden) -> None:
    """`bench --mode live` on a server without vLLM's routes gives the same document."""
    with FakeVllm(has_tokenizer=False) as server:
        flags = ("--base-url", server.base_url, "--mode", "live", *SMALL)
        document = document_of("bench", *flags, "--json")
    golden.check("bench live", masked(document, TIMES))


def test_compare_of_runs_on_disk(golden: Golden, tmp_path: Path) -> None:
    """`compare --resume` reads complete runs and gives the same numbers without any server."""
    out = tmp_path / "compared"
    shutil.copytree(INPUTS / "compare", out)
    flags = ("--policy", "fcfs", "--policy", "continuum:paper", "--repeats", "2", "--seed", "5")
    document = document_of("compare", *flags, "--resume", "--out", str(out), "--json")
    golden.check("compare", masked(document, "out"))
    assert masked(json.loads((out / "compare.json").read_text())) == masked(document)


def test_record(golden: Golden) -> None:
    """`record` gives the same totals and rows from a saved answer of the timestamps route."""
    document = document_of("record", str(INPUTS / "timestamps.json"), "--json")
    golden.check("record", masked(document, "source"))
    document = document_of(
        "record", str(INPUTS / "timestamps.json"), "--json", "--job", document["jobs"][1]["job_id"]
    )
    golden.check("record --job", masked(document, "source"))


def test_plot(golden: Golden, tmp_path: Path) -> None:
    """`plot` draws the same figures of the same runs."""
    out = tmp_path / "figures"
    document = document_of("plot", str(INPUTS / "compare"), "--out", str(out))
    for figure in document["figures"]:
        path = Path(figure["file"])
        assert path.parent == out
        assert path.read_bytes().startswith(b"\x89PNG")
        figure["file"] = path.name
    golden.check("plot", masked(document))


def test_doctor(golden: Golden) -> None:
    """`doctor --json` lists the same checks with the same fields."""
    golden.check("doctor", masked(document_of("doctor", "--json"), "ok|status|seen|advice"))


def test_swebench_demo_and_report(golden: Golden, tmp_path: Path) -> None:
    """A scripted demo is played, graded and reported with the same documents and files."""
    folders = []
    for model in ("gold", "wrong"):
        folders.append(str(tmp_path / model))
        flags = ("--model", f"scripted:{model}", "--slice", "0:2", "--out", folders[-1])
        document = document_of("swebench", "demo", *flags, "--json")
        golden.check(f"swebench demo {model}", masked(document, TIMES))
    files = sorted(path.name for path in Path(folders[0]).iterdir())
    golden.check("swebench files", files)
    rows = (Path(folders[0]) / "instances.jsonl").read_text().splitlines()
    row = masked(
        min((json.loads(line) for line in rows), key=lambda row: row["instance_id"]), TIMES
    )
    golden.check("swebench row", {**row, "job_id": type(row["job_id"]).__name__})
    document = document_of(
        "swebench", "report", *folders, "--out", str(tmp_path / "report"), "--json"
    )
    golden.check(
        "swebench report", masked(document, TIMES + "|name|baseline|conditions|per_turn_.*")
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_flags(golden: Golden, command: str) -> None:
    """Every command has the flags that it had."""
    status, out, errors = run_command(*command.split(), "--help")
    assert status == 0, errors
    flags = re.findall(r"^[^\w-]+(?:-\w, )?(--[a-z][a-z-]+)", out, flags=re.MULTILINE)
    golden.check(f"{command} --help", " ".join(sorted(set(flags))))


@pytest.mark.parametrize("arguments", REFUSED)
def test_refusals(golden: Golden, arguments: str) -> None:
    """Bad usage ends with the status that it had, with a message and no document."""
    status, out, errors = run_command(*arguments.split())
    assert out == ""
    assert errors.strip()
    assert "Traceback" not in errors
    golden.check(f"refused: {arguments}", status)
