"""Cuts wheels down to what one GPU needs, in parts for a machine without a network.

`pack` runs where the wheels are, `unpack` on the bare machine, which needs this file and Python
alone. What is unpacked goes on PYTHONPATH; native libraries that are left out must not be asked for
(see README.md).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

PART_BYTES = 60 * 1024**2
"""The largest file that the bare machine takes."""
KEPT = ("vllm/_C_stable_libtorch*.so", "vllm/vllm_flash_attn/_vllm_fa3_C*.so")
"""Native libraries of vLLM that are packed: 66 and 43 MB of 0.33's 336."""
MANIFEST = "parts.json"
_BIG_BYTES = 5 * 1024**2


class KitError(Exception):
    """The parts cannot be made, or are not those that were packed; the message says which."""


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
    (out / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return parts


def is_wanted(entry: zipfile.ZipInfo, kept: Sequence[str]) -> bool:
    """Whether a file is packed: of vLLM no native and no other large one that is not kept."""
    if not entry.filename.startswith("vllm/") or any(fnmatch(entry.filename, k) for k in kept):
        return True
    is_native = entry.filename.endswith(".so") or ".so." in entry.filename
    return not is_native and entry.file_size <= _BIG_BYTES


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
    """0: done; 2: the parts cannot be made or read."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("wheels", nargs="+", type=Path)
    packing.add_argument("--out", type=Path, required=True)
    packing.add_argument("--keep", action="append", metavar="GLOB", help=f"default {KEPT}")
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("parts", type=Path)
    unpacking.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        if options.command == "pack":
            kept = KEPT if options.keep is None else options.keep
            print(_megabytes(pack(options.wheels, options.out, kept=kept)))
        else:
            print(f"{unpack(options.parts, options.folder)} files in {options.folder}")
    except (KitError, OSError, zipfile.BadZipFile) as error:
        print(f"kit.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
