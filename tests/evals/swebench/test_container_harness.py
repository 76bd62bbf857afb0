"""Facts about the official harness in containers: where podman and the suite's images are."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentkv.evals.swebench.errors import SwebenchError
from agentkv.evals.swebench.eval_command import evaluate
from agentkv.evals.swebench.eval_containers import failure
from agentkv.evals.swebench.eval_results import EvalFile, Verdict, patch_sha256
from tests.evals.swebench.run_folders import SUITE, gold_patches, write_run


def images_missing() -> str:
    """Why the suite cannot be graded in containers here; empty if it can."""
    if shutil.which("podman") is None:
        return "no podman here"
    for image in sorted({str(instance.raw["image"]) for instance in SUITE}):
        asked = subprocess.run(["podman", "image", "exists", f"docker.io/{image}"], check=False)
        if asked.returncode:
            return f"no image {image} here: docs/swebench.md says how to make it"
    return ""


needs_images = pytest.mark.skipif(bool(images_missing()), reason=images_missing() or "-")


def containers() -> list[str]:
    """Names of the harness's containers that are there."""
    listed = ["podman", "ps", "--all", "--format", "{{.Names}}"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in names if name.startswith("sweb.eval.")]


@pytest.mark.slow
@needs_images
def test_gold_and_wrong_and_broken_patches_in_containers(tmp_path: Path) -> None:
    """The harness itself says resolved, unresolved and error; no container is left."""
    first, second, third = SUITE[:3]
    patches = {
        first.instance_id: first.patch,
        second.instance_id: "diff --git a/N b/N\n--- /dev/null\n+++ b/N\n@@ -0,0 +1 @@\n+x\n",
        third.instance_id: third.patch.replace("intervals/merge.py", "intervals/nothing.py"),
    }
    evaluate(write_run(tmp_path, patches), mode="podman", workers=3, say=lambda text: None)
    results = json.loads((tmp_path / "eval.json").read_text())["results"]
    assert [entry["status"] for entry in results.values()] == ["resolved", "unresolved", "error"]
    assert "the patch does not apply" in results[third.instance_id]["detail"]
    assert containers() == []


@pytest.mark.slow
@needs_images
def test_an_interrupt_leaves_no_container_and_keeps_what_is_graded(tmp_path: Path) -> None:
    """Ctrl-C in the middle: the verdicts so far stand in eval.json."""
    write_run(tmp_path, gold_patches())
    command = [sys.executable, "-m", "agentkv.evals.swebench.eval_command", str(tmp_path)]
    process = subprocess.Popen([*command, "--mode", "podman", "--workers", "1"])
    while (
        not (tmp_path / "eval.json").exists()
        or '"resolved"' not in (tmp_path / "eval.json").read_text()
    ):
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 1
    assert len(json.loads((tmp_path / "eval.json").read_text())["results"]) < len(SUITE)
    assert containers() == []


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "INFO - >>>>> Patch Apply Failed:\nerror: a.py: No such file\nTraceback ...",
            "the patch does not apply: error: a.py: No such file",
        ),
        (
            "EvaluationError: Error in evaluation for a-1: Error in evaluation for a-1: Image x/y "
            "not found for a-1\nCheck (run_instance.log) for more information.",
            "Image x/y not found for a-1",
        ),
        (
            "EvaluationError: Error in evaluation for a-1: Test timed out after 8 seconds.\nCheck",
            "Test timed out after 8 seconds.",
        ),
    ],
)
def test_the_harnesss_own_words_are_the_reason(tmp_path: Path, log: str, told: str) -> None:
    """What its log of an instance says, where it leaves no report."""
    (tmp_path / "run_instance.log").write_text(log)
    found = failure("a-1", tmp_path)
    assert found.status == "error"
    assert found.detail.startswith(told)


def test_a_harness_that_left_nothing_is_an_error(tmp_path: Path) -> None:
    """Neither report nor log: the harness's own log is named."""
    assert "harness.log" in failure("a-1", tmp_path).detail


@pytest.mark.slow
def test_without_a_daemon_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No docker daemon: the other modes are offered, and what was graded by one of them is kept."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'no.sock'}")
    instance = SUITE[0]
    folder = write_run(tmp_path / "run", {instance.instance_id: instance.patch})
    graded = Verdict("resolved", "", patch_sha256(instance.patch))
    EvalFile(folder, "daemon-less", [instance.instance_id], {}).add(instance.instance_id, graded)
    before = (folder / "eval.json").read_text()
    with pytest.raises(SwebenchError, match="--mode podman"):
        evaluate(folder, mode="docker", say=lambda text: None)
    assert (folder / "eval.json").read_text() == before
