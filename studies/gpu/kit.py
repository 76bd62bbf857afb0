"""Cuts wheels down to what one GPU needs, in parts for a machine without a network.

`fetch` and `pack` run where there is one, `run` on the bare machine, which needs the parts, this
file next to them, and Python: it unpacks once and starts the driver. Native libraries that are left
out must not be asked for (rungs.py).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

PART_BYTES = 60 * 1024**2
"""The largest file that the bare machine takes."""
KEPT = ("vllm/_C_stable_libtorch*.so", "vllm/vllm_flash_attn/_vllm_fa3_C*.so")
"""Native libraries of vLLM that are packed: 66 and 43 MB of 0.33's 336."""
NEEDED = (
    *("fastapi<0.137", "uvicorn", "openai>=2.25,<3", "pydantic>=2.12", "prometheus-client"),
    *("prometheus-fastapi-instrumentator", "model-hosting-container-standards<1", "orjson"),
    *("anthropic", "mcp>=2.2,<3", "msgspec", "pyzmq", "cachetools", "cbor2", "blake3", "ijson"),
    *("pybase64", "setproctitle", "partial-json-parser", "jsonschema", "watchfiles"),
    *("python-json-logger", "python-multipart", "lark==1.2.2", "depyf==0.20.0"),
    *("tenacity", "aiohttp", "requests", "uvloop"),
    *("psutil", "pillow", "einops", "cloudpickle", "py-cpuinfo", "six"),
)
"""What vLLM and agentkv import and the bare machine lacks, with all that these need."""
ALONE = (
    *("xgrammar==0.2.8", "compressed-tensors==0.17.0", "outlines_core==0.2.14"),
    *("llguidance>=1.7,<1.8", "lm-format-enforcer==0.11.3", "interegular"),
    *("oss-harmony", "mistral_common", "pydantic-extra-types", "pycountry"),
    *("apache-tvm-ffi==0.1.11", "scipy>=1.11"),
)
"""The same, without what they need: the bare machine has PyTorch, Triton and transformers."""
PLATFORMS = (
    *("manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux_2_27_x86_64"),
    *("manylinux2014_x86_64", "manylinux_2_12_x86_64"),
)
MANIFEST = "parts.json"
_BIG_BYTES = 5 * 1024**2
_HERE = Path(__file__).parent


class KitError(Exception):
    """The parts cannot be made, or are not those that were packed; the message says which."""


def fetch(vllm_version: str, out: Path, *, python_version: str) -> None:
    """Download vLLM's wheel and those that it needs with pip, and build agentkv's.

    Raises KitError with what pip says.
    """
    pip = [sys.executable, "-m", "pip", "--quiet"]
    target = ["--python-version", python_version, "--only-binary", ":all:", "--dest", str(out)]
    for platform in PLATFORMS:
        target += ["--platform", platform]
    for command in (
        ["download", *target, "--no-deps", f"vllm=={vllm_version}", *ALONE],
        ["download", *target, *NEEDED],
        ["wheel", "--no-deps", "--wheel-dir", str(out), str(_HERE.parents[1])],
    ):
        done = subprocess.run([*pip, *command], check=False, capture_output=True, text=True)
        if done.returncode:
            raise KitError(done.stderr.strip())


def pack(
    wheels: Sequence[Path], out: Path, *, kept: Sequence[str] = KEPT, part_bytes: int = PART_BYTES
) -> list[Path]:
    """Write the files of the wheels that are wanted as one zip in parts; returns the parts.

    vLLM's own libraries are packed if they match `kept`; those of its dependencies all are. Raises
    KitError for a pattern that nothing matches.
    """
    buffer, unseen = io.BytesIO(), set(kept)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as source:
                for entry in source.infolist():
                    unseen -= {pattern for pattern in unseen if fnmatch(entry.filename, pattern)}
                    if is_wanted(entry, kept):
                        packed.writestr(entry.filename, source.read(entry))
        for path in _HERE.glob("*.py"):
            packed.write(path, f"studies/gpu/{path.name}")
    if unseen:
        raise KitError(f"no file of {', '.join(map(str, wheels))} matches {', '.join(unseen)}")
    out.mkdir(parents=True, exist_ok=True)
    content, parts, facts = buffer.getvalue(), [], []
    for number, start in enumerate(range(0, len(content), part_bytes)):
        part = content[start : start + part_bytes]
        path = out / f"kit.zip.{number:03}"
        path.write_bytes(part)
        parts.append(path)
        facts.append({"name": path.name, "sha256": hashlib.sha256(part).hexdigest()})
    shutil.copy(__file__, out)
    (out / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return parts


def is_wanted(entry: zipfile.ZipInfo, kept: Sequence[str]) -> bool:
    """Whether a file is packed: of vLLM no native and no other large one that is not kept."""
    if not entry.filename.startswith("vllm/") or any(fnmatch(entry.filename, k) for k in kept):
        return True
    is_native = entry.filename.endswith(".so") or ".so." in entry.filename
    return not is_native and entry.file_size <= _BIG_BYTES


def run(parts: Path, site: Path, arguments: Sequence[str]) -> int:
    """Unpack what is not there yet, and start the driver on it; returns its status."""
    manifest = (parts / MANIFEST).read_bytes()
    mark = site / MANIFEST
    if not mark.exists() or mark.read_bytes() != manifest:
        print(f"{unpack(parts, site)} files in {site}", file=sys.stderr, flush=True)
        mark.write_bytes(manifest)
    rest = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(site.resolve()), *([rest] if rest else [])])
    driver = [sys.executable, "-m", "studies.gpu", *arguments]
    return subprocess.run(driver, check=False, env={**os.environ, "PYTHONPATH": path}).returncode


def unpack(parts: Path, folder: Path) -> int:
    """Check the parts and write their files below `folder`; returns how many there are."""
    with zipfile.ZipFile(io.BytesIO(b"".join(_checked(parts)))) as packed:
        packed.extractall(folder)
        return len(packed.namelist())


def _checked(parts: Path) -> Iterator[bytes]:
    try:
        facts = json.loads((parts / MANIFEST).read_text(encoding="utf-8"))
        for fact in facts:
            content = (parts / fact["name"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != fact["sha256"]:
                raise KitError(f"{parts / fact['name']} is not what was packed: copy it again")
            yield content
    except OSError as error:
        raise KitError(f"a part is missing: {error}: copy it again") from error


def _megabytes(paths: Iterable[Path]) -> str:
    return ", ".join(f"{path.name} {path.stat().st_size / 1e6:.0f} MB" for path in paths)


def main() -> int:
    """0: done; 1: the driver has more to do; 2: the parts cannot be made or read."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="download the wheels")
    fetching.add_argument("--vllm", default="0.33.0", metavar="VERSION")
    fetching.add_argument("--python", default="3.12", metavar="VERSION")
    fetching.add_argument("--out", type=Path, required=True)
    packing = commands.add_parser("pack", help="cut them down, in parts")
    packing.add_argument("wheels", nargs="+", type=Path)
    packing.add_argument("--out", type=Path, required=True)
    packing.add_argument("--keep", action="append", metavar="GLOB", help=f"default {KEPT}")
    running = commands.add_parser("run", help="unpack the parts next to this file, and measure")
    running.add_argument("--site", type=Path, required=True, help="where the files go")
    running.add_argument("driver", nargs="+", help="arguments of the driver, behind --")
    options = parser.parse_args()
    try:
        if options.command == "fetch":
            fetch(options.vllm, options.out, python_version=options.python)
        elif options.command == "pack":
            kept = KEPT if options.keep is None else options.keep
            print(_megabytes(pack(options.wheels, options.out, kept=kept)))
        else:
            return run(_HERE, options.site, options.driver)
    except (KitError, OSError, zipfile.BadZipFile) as error:
        print(f"kit.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
