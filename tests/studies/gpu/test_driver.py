"""The kit for a bare GPU machine: what it packs, and what its driver plays in which order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from agentkv.evals.simulator.machine import read_profile
from studies.gpu import kit
from studies.gpu.__main__ import STEPS, Step, compare_command, drive
from studies.gpu.compare import read_experiment
from studies.gpu.rungs import RUNGS, find_rung


class Played:
    """Writes the runs of each step, as `agentkv bench` does, and passes time with each run."""

    def __init__(self, out: Path, run_s: float) -> None:
        self.out = out
        self.run_s = run_s
        self.now_s = 0.0
        self.steps: list[str] = []

    def __call__(self, step: Step, limit_s: float) -> None:
        self.steps.append(f"{step.regime} x{step.repeats}")
        end_s = self.now_s + limit_s
        for repeat in range(step.repeats):
            for policy in step.policies:
                folder = self.out / step.regime / f"{policy.replace(':', '-')}-{repeat}"
                if folder.exists():
                    continue
                if self.now_s + self.run_s > end_s:
                    self.now_s = end_s
                    return
                self.now_s += self.run_s
                folder.mkdir(parents=True)
                summary = {"policy": policy, "mean_s": 1.0}
                run = {"metadata": {"repeat": repeat}, "summary": summary}
                (folder / "run.json").write_text(json.dumps(run))

    def clock(self) -> float:
        return self.now_s


def test_what_says_most_is_played_first_and_nothing_twice(tmp_path: Path) -> None:
    """Calls of ten minutes play the steps in order, each run once, and keep a row of each."""
    played = Played(tmp_path, run_s=130.0)
    num_rows = []
    for _ in range(100):
        is_done = drive(STEPS, tmp_path, played, limit_s=600.0, clock=played.clock)
        num_rows.append(len((tmp_path / "rows.jsonl").read_text().splitlines()))
        if is_done:
            break
    assert num_rows[:3] == [4, 8, 12]
    assert played.steps[:3] == ["scarce x1"] * 2 + ["scarce x1"]
    assert num_rows[-1] == len({(s.regime, p, n) for s in STEPS for p in s.policies
                                for n in range(s.repeats)})  # fmt: skip
    assert not drive(STEPS, tmp_path / "other", played, limit_s=59.0, clock=played.clock)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_a_comparison(step: Step, tmp_path: Path) -> None:
    """Every step's command is one that the comparison takes; once the first regime's server is
    measured, others take its profile."""
    command = compare_command(step, tmp_path, "h100", RUNGS[1].flags)[3:]
    made = read_experiment(command)[1]
    plan = made.plan
    assert [policy.name for policy in plan.policies] == list(step.policies)
    assert (made.gpu, plan.repeats, plan.load.config["resume"]) == ("h100", step.repeats, True)
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
    """Each rung's server is tried once, its log kept, and the last rung has none; what answered
    is taken at once, and nothing is begun when the time is over, nor kept of what was cut off."""
    assert find_rung(tmp_path, limit_s=0.0) is None
    bad = [replace(rung, flags=("--kv-tier-gib", "x")) for rung in RUNGS[:2]]
    found = find_rung(tmp_path, [*bad, RUNGS[-1]], limit_s=100.0)
    assert found is RUNGS[-1]
    assert json.loads((tmp_path / "rungs.json").read_text()) == {
        "whole": False,
        "no-library": False,
    }
    assert "must be a number above 0" in (tmp_path / "rung-whole.log").read_text()
    assert find_rung(tmp_path / "cut", RUNGS[:1], limit_s=2.0) is None
    assert not (tmp_path / "cut" / "rungs.json").exists()
    (tmp_path / "rungs.json").write_text('{"whole": false, "no-library": true}')
    assert find_rung(tmp_path, limit_s=100.0) is RUNGS[1]


@pytest.mark.long
def test_the_library_is_replaced_for_every_process(tmp_path: Path) -> None:
    """Without the library any Python of that environment imports a module in its place, which says
    that it can do nothing of what vLLM's layers ask about when they are imported."""
    variables = RUNGS[1].environment(tmp_path / "stub")
    code = "import torch, vllm._C_stable_libtorch; "
    code += "print(torch.ops._C.cutlass_scaled_mm_supports_block_fp8(90))"
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True
    )
    assert done.stdout.split()[-1:] == [b"False"]
    assert "PYTHONPATH" not in RUNGS[0].environment(tmp_path)


@pytest.mark.server
@pytest.mark.long
def test_the_last_rungs_run_here(tmp_path: Path) -> None:
    """The CPU build serves with PyTorch's own layers; an engine in a process is calibrated."""
    own = replace(RUNGS[2], flags=RUNGS[2].flags[2:], has_library=True)  # its own attention
    assert find_rung(tmp_path, [own], limit_s=600.0) is own
    code = f"""
from pathlib import Path
from studies.gpu.rungs import calibrate_in_process
if __name__ == "__main__":
    profile = calibrate_in_process(Path({str(tmp_path / "llama-tiny")!r}), num_blocks=33,
        max_model_tokens=1024, num_rounds=1, block_size=32, dtype="float32",
        gpu_memory_utilization=0.5,
        compilation_config={{"custom_ops": ["none"]}})
    Path("profile.json").write_text(profile.model_dump_json())
"""
    script = tmp_path / "calibrate.py"
    script.write_text(code)
    root = Path(__file__).parents[3]
    environment = {**os.environ, **RUNGS[-1].variables, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, script], check=True, env=environment, cwd=tmp_path)
    profile = read_profile(tmp_path / "profile.json")
    assert profile.block_tokens == 32
    assert profile.step.fixed_s > 0.0


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


def test_a_damaged_part_is_named(wheel: Path, tmp_path: Path) -> None:
    """A part that changed or is missing on its way is an error that names it."""
    parts = kit.pack([wheel], tmp_path / "parts", part_bytes=200)
    parts[1].write_bytes(b"other")
    with pytest.raises(kit.KitError, match=r"kit\.zip\.001"):
        kit.unpack(tmp_path / "parts", tmp_path / "site")
    parts[1].unlink()
    with pytest.raises(kit.KitError, match=r"kit\.zip\.001"):
        kit.unpack(tmp_path / "parts", tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_library_that_is_not_there_is_no_kit(wheel: Path, tmp_path: Path) -> None:
    """A pattern that matches nothing means another version of vLLM: nothing is written."""
    with pytest.raises(kit.KitError, match="_C_other"):
        kit.pack([wheel], tmp_path / "parts", kept=["vllm/_C_other*.so"])
    assert not (tmp_path / "parts").exists()
