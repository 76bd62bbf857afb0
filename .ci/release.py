"""Builds sdist and wheel as they are published, and tries each one in an empty environment.

`make release` runs it. What git does not track cannot get in; the description for the package
index is the README with absolute links, at the tag of the version. Publishes nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("agents", "evals", "integrations")
"""Folders of the root that install below agentkv, through links."""
SDIST_TOP = (
    *("agentkv", "agentkv_serving.egg-info", "PKG-INFO", "setup.cfg", "pyproject.toml"),
    *("MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"),
)
DATA = (
    "agentkv/py.typed",
    "agentkv/agents.toml",
    "agentkv/commands/programs.toml",
    "agentkv/durations/trees.json",
    "agentkv/evals/simulator/catalog.toml",
    "agentkv/evals/swebench/suite/instances.json",
    "agentkv/integrations/vllm/ui/page.js",
)
"""Files of the wheel next to its Python: one of each folder that has some."""
CLIENT = """
import sys

sys.path.append("CHECKOUT")
from tests.scripted_server import ScriptedReply, ScriptedServer

with ScriptedServer([ScriptedReply("```bash\\necho seen\\n```")], model="scripted") as server:
    source = open("tutorial.py").read().replace("http://127.0.0.1:8000", server.root_url)
    exec(compile(source, "tutorial.py", "exec"))
    server.wait_for(lambda server: server.released)
"""


class ReleaseError(Exception):
    """What keeps this tree from being released."""


def export(target: Path, root: Path = ROOT) -> Path:
    """Copy what git tracks of the checkout, as it is in the folder now."""
    target.mkdir(parents=True)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    packed = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-"],
        cwd=root,
        input=names.stdout,
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "--extract"], cwd=target, input=packed.stdout, check=True)
    return target


def version_of(tree: Path, tag: str | None = None) -> str:
    """Return the version; ReleaseError unless package, changelog and tag name the same."""
    version = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"]
    package = re.search(r'^__version__ = "(.+)"$', (tree / "agentkv/__init__.py").read_text(), re.M)
    newest = re.search(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", (tree / "CHANGELOG.md").read_text(), re.M)
    seen = {
        "agentkv.__version__": package and package[1],
        "CHANGELOG.md's first dated heading": newest and newest[1],
        "the tag": version if tag is None else tag.removeprefix("v"),
    }
    if wrong := {name: found for name, found in seen.items() if found != version}:
        raise ReleaseError(f"pyproject.toml has version {version}, but {wrong}")
    return str(version)


def description(readme: str, repository: str | None, tag: str) -> str:
    """The README with absolute links; without a repository links are text, pictures left out."""

    here = r"\((?!https?:|#)([^)\s]+)\)"

    def picture(found: re.Match[str]) -> str:
        at = f"{repository}/raw/{tag}/{found[2]}"
        return "" if repository is None else f"![{found[1]}]({at})"

    def link(found: re.Match[str]) -> str:
        at = f"{repository}/blob/{tag}/{found[2]}"
        return found[1] if repository is None else f"[{found[1]}]({at})"

    shown = re.sub(rf"!\[([^\]]*)\]{here}", picture, readme)
    # the text of a link may be a picture
    return re.sub(rf"(?<!!)\[((?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]{here}", link, shown)


def prepare(tree: Path, repository: str | None, tag: str) -> None:
    """Write into an export what only the package index needs."""
    readme = tree / "README.md"
    readme.write_text(description(readme.read_text(), repository, tag))
    if repository is not None:
        urls = {"Source": "", "Issues": "/issues", "Changelog": f"/blob/{tag}/CHANGELOG.md"}
        lines = [f'{name} = "{repository}{path}"' for name, path in urls.items()]
        with (tree / "pyproject.toml").open("a") as project:
            project.write("\n".join(["", "[project.urls]", *lines, ""]))


def wrong_contents(tree: Path, sdist: Path, wheel: Path) -> list[str]:
    """Sentences about files that are missing in sdist or wheel, or do not belong there."""
    with tarfile.open(sdist) as packed:
        files = [each.name.partition("/")[2] for each in packed.getmembers() if each.isfile()]
    with zipfile.ZipFile(wheel) as zipped:
        installed = {name for name in zipped.namelist() if ".dist-info/" not in name}
    wrong = [f"{name} is in the sdist" for name in files if name.split("/")[0] not in SDIST_TOP]
    package = {name for name in files if name.startswith("agentkv/")}
    wrong += [f"{name} is in one of sdist and wheel only" for name in package ^ installed]
    python = {
        f"agentkv/{path.relative_to(tree)}" if room != "agentkv" else str(path.relative_to(tree))
        for room in ("agentkv", *ROOMS)
        for path in (tree / room).rglob("*.py")
        if "suite/repositories" not in str(path)
    }
    return sorted(wrong + [f"{name} is missing" for name in {*python, *DATA} - installed])


def try_out(package: Path, tutorial: Path) -> None:
    """Install a package into an empty environment, and play the tutorial's client part there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "venv", with_pip=True)
        programs = Path(folder) / "venv/bin"
        pip = [programs / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        subprocess.run([*pip, "--disable-pip-version-check", package, "openai"], check=True)
        blocks = re.findall(r"^```python\n(.*?)^```$", tutorial.read_text(), re.M | re.S)
        (Path(folder) / "tutorial.py").write_text("\n".join(blocks))
        (Path(folder) / "client.py").write_text(CLIENT.replace("CHECKOUT", str(ROOT)))
        for command in (["agentkv", "--version"], ["python", "client.py"]):
            words = [programs / command[0], *command[1:]]
            done = subprocess.run(words, cwd=folder, text=True, capture_output=True, timeout=120)
            print(f"{package.name}: {' '.join(command)}\n{done.stdout}{done.stderr}")
            if done.returncode != 0:
                raise ReleaseError(f"{package.name}: {' '.join(command)} failed")
        if not re.search(r"^tool time .*\(2 calls\)", done.stdout, re.M):
            raise ReleaseError(f"{package.name}: the tutorial's agent ran no tools")


def main() -> int:
    """Exit status 1, with the reason, if this tree cannot be released."""
    options = _options()
    shutil.rmtree(options.out, ignore_errors=True)
    time_s = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    python = [sys.executable, "-m"]
    try:
        with tempfile.TemporaryDirectory() as folder:
            tree = export(Path(folder) / "tree")
            version = version_of(tree, options.tag)
            prepare(tree, options.repository, f"v{version}")
            subprocess.run(
                [*python, "build", "--outdir", options.out, tree],
                env=os.environ | {"SOURCE_DATE_EPOCH": time_s},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            (sdist,), (wheel,) = options.out.glob("*.tar.gz"), options.out.glob("*.whl")
            if wrong := wrong_contents(tree, sdist, wheel):
                raise ReleaseError("\n".join(wrong))
        subprocess.run([*python, "twine", "check", "--strict", sdist, wheel], check=True)
        for package in (sdist, wheel):
            try_out(package, ROOT / "docs/tutorial.md")
    except (ReleaseError, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    links = options.repository or "no repository known, so the index page has no links"
    print(f"release: {sdist.name} and {wheel.name} in {options.out} ({links})")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    forge = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}"
    known = forge.format_map(os.environ) if "GITHUB_REPOSITORY" in os.environ else None
    parser.add_argument("--repository", default=known, metavar="URL", help="where links lead")
    parser.add_argument("--tag", help="must name the version, such as v0.1.0")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
