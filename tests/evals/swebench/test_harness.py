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

from agentkv.evals.swebench.grading import evaluate, patch_sha256
from agentkv.evals.swebench.harness import failure
from agentkv.evals.swebench.instances import SwebenchError
from tests.evals.swebench.run_folders import SUITE, gold_patches, write_eval, write_run


def images_missing() -> str:
    """Why the suite cannot be graded in containers here; empty if it can."""
    if shutil.which("podman") is None:
        return "no podman here"
    for image in sorted({str(instance.raw["image"]) for instance in SUITE}):
        asked = subprocess.run(["podman", "image", "exists", f"docker.io/{image}"], check=False)
        if asked.returncode:
            return f"no image {image} here: docs/how-to/swebench.md says how to make it"
    return ""


needs_images = pytest.mark.skipif(bool(images_missing()), reason=images_missing() or "-")


def containers() -> list[str]:
    """Names of the harness's containers that exist."""
    listed = ["podman", "ps", "--all", "--format", "{{.Names}}"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in names if name.startswith("sweb.eval.")]


@pytest.mark.slow
@needs_images
def test_patches_are_graded_in_containers(tmp_path: Path) -> None:
    """The harness says resolved, unresolved and error, and no container is left."""
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
def test_an_interrupt_leaves_no_container(tmp_path: Path) -> None:
    """After Ctrl-C in the middle the verdicts so far are in eval.json."""
    write_run(tmp_path, gold_patches())
    command = [sys.executable, "-m", "agentkv.cli", "swebench", "eval", str(tmp_path)]
    process = subprocess.Popen([*command, "--mode", "podman", "--workers", "1"])
    path = tmp_path / "eval.json"
    while not path.exists() or '"resolved"' not in path.read_text():
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 1
    assert len(json.loads(path.read_text())["results"]) < len(SUITE)
    assert containers() == []


@pytest.mark.parametrize(
    ("log", "reason"),
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
        (None, "the harness left neither report nor log: see harness.log"),
    ],
)
def test_an_instance_without_report_has_its_logs_reason(
    tmp_path: Path, log: str | None, reason: str
) -> None:
    """The harness's own words say why it graded nothing."""
    if log is not None:
        (tmp_path / "run_instance.log").write_text(log)
    found = failure("a-1", tmp_path)
    assert found.status == "error"
    assert found.detail.startswith(reason)


@pytest.mark.slow
def test_without_a_daemon_the_other_modes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a docker daemon nothing is graded, and earlier verdicts of another mode are kept."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'no.sock'}")
    name, patch = SUITE[0].instance_id, SUITE[0].patch
    folder = write_run(tmp_path / "run", {name: patch})
    write_eval(folder, {name: ("resolved", patch_sha256(patch))}, mode="daemon-less")
    before = (folder / "eval.json").read_text()
    with pytest.raises(SwebenchError, match="--mode podman"):
        evaluate(folder, mode="docker", say=lambda text: None)
    assert (folder / "eval.json").read_text() == before
