"""The kit for a bare GPU machine: what it packs, and what its driver plays in which order."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from studies.gpu import kit
from studies.gpu.__main__ import STEPS, Step, compare_command
from studies.gpu.compare import read_experiment
from studies.gpu.rungs import RUNGS, find_rung


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_a_comparison(step: Step, tmp_path: Path) -> None:
    """Every step's command is one that the comparison takes; once the first regime's server is
    measured, others take its profile."""
    command = compare_command(step, tmp_path, "h100", RUNGS[1].flags)[3:]
    made = read_experiment(command)[1]
    plan = made.plan
    assert [policy.name for policy in plan.policies] == list(step.policies)
    assert (made.gpu, plan.repeats, plan.config["resume"]) == ("h100", step.repeats, True)
    assert plan.server_flags[-4:] == RUNGS[1].flags
    folders = {plan.folder(p, r) for p, r in plan.runs()}
    (tmp_path / "scarce").mkdir(exist_ok=True)
    (tmp_path / "scarce" / "profile.json").touch()
    known = compare_command(step, tmp_path, "h100", ())
    assert ("h100" in known) is (step.regime == "scarce")
    assert not step.is_done(tmp_path)
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "run.json").write_text('{"metadata": {}}')
    assert step.is_done(tmp_path)


@pytest.mark.long
def test_a_rung_that_failed_is_not_tried_again(tmp_path: Path) -> None:
    """Each rung's server is tried once, its log kept; what answered is taken at once, and nothing
    is begun when the time is over, nor kept of what was cut off."""
    assert find_rung(tmp_path, limit_s=0.0) is None
    bad = [replace(rung, flags=("--kv-tier-gib", "x")) for rung in RUNGS[:2]]
    assert find_rung(tmp_path, bad, limit_s=100.0) is None
    assert json.loads((tmp_path / "rungs.json").read_text()) == {
        "whole": False,
        "no-library": False,
    }
    assert "must be a number above 0" in (tmp_path / "rung-whole.log").read_text()
    assert find_rung(tmp_path / "cut", RUNGS[:1], limit_s=2.0) is None
    assert not (tmp_path / "cut" / "rungs.json").exists()
    (tmp_path / "rungs.json").write_text('{"whole": false, "no-library": true}')
    assert find_rung(tmp_path, limit_s=100.0) is RUNGS[1]


FILES = {
    "vllm/__init__.py": b"name = 'vllm'\n",
    "vllm/_C_stable_libtorch.abi3.so": b"\0stable" * 2000,
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": b"\0fa3" * 2000,
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": b"\0fa2" * 2000,
    "vllm/vllm-rs": bytes(6 * 1024**2),
    "vllm-0.33.0.dist-info/METADATA": b"Name: vllm\n",
    "msgspec/_core.cpython-312-x86_64-linux-gnu.so": b"\0msgspec",
}
LEFT_OUT = {"vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/vllm-rs"}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "vllm.whl"
    with zipfile.ZipFile(path, "w") as made:
        for name, content in FILES.items():
            made.writestr(name, content)
    return path


def test_what_is_unpacked_is_what_one_gpu_needs(wheel: Path, tmp_path: Path) -> None:
    """Small parts arrive as the wheel's files, without the libraries and programs left out."""
    parts = kit.pack([wheel], tmp_path / "parts", part_bytes=200)
    assert len(parts) > 2
    assert all(part.stat().st_size <= 200 for part in parts)
    # from the parts alone, by the file next to them
    command = [sys.executable, "-I", str(tmp_path / "parts" / "kit.py"), "run"]
    command += ["--site", str(tmp_path / "site"), "--", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}  # this agentkv
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert "--minutes" in done.stdout  # the driver runs
    site = tmp_path / "site"
    files = [p for p in site.rglob("*") if p.is_file() and p.suffix != ".pyc"]
    found = {path.relative_to(site).as_posix(): path.read_bytes() for path in files}
    own = {name for name in found if name.startswith("studies/")}
    assert own == {f"studies/gpu/{p.name}" for p in Path(kit.__file__).parent.glob("*.py")}
    assert found.pop(kit.MANIFEST) == (tmp_path / "parts" / kit.MANIFEST).read_bytes()
    left = {name: found[name] for name in found if name not in own}
    assert left == {name: FILES[name] for name in FILES if name not in LEFT_OUT}
