"""The kit for a bare GPU machine: what is packed, and that it arrives whole."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from studies.gpu import kit

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
