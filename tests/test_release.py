"""What is published holds the package alone, under one version, with links that lead somewhere."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).parents[1]
release = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci/release.py")))
BUILD = (
    "from setuptools import build_meta as backend\n"
    "backend.build_sdist('dist')\nbackend.build_wheel('dist')"
)


@pytest.mark.slow
def test_sdist_and_wheel_hold_the_package_alone(tmp_path: Path) -> None:
    """Both have every module and the data, and nothing of tests, studies or the checkout's dirt."""
    tree = release.export(tmp_path / "tree")
    release.prepare(tree, "https://forge.example/us/agentkv", "v1")
    subprocess.run([sys.executable, "-c", BUILD], cwd=tree, check=True, capture_output=True)
    (sdist,), (wheel,) = (tree / "dist").glob("*.tar.gz"), (tree / "dist").glob("*.whl")
    assert release.wrong_contents(tree, sdist, wheel) == []


def test_one_version_is_named_everywhere() -> None:
    """Package, project, changelog, citation, site have the same version, and a tag must have it."""
    version = release.version_of(ROOT)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    assert f"copyright: agentkv {version}," in (ROOT / "mkdocs.yml").read_text()
    assert f"## {version} ({citation['date-released']})\n" in (ROOT / "CHANGELOG.md").read_text()
    with pytest.raises(release.ReleaseError, match="the tag"):
        release.version_of(ROOT, "v0.0.9")


@pytest.mark.parametrize("repository", [None, "https://forge.example/us/agentkv"])
def test_the_description_for_the_index_has_no_relative_link(repository: str | None) -> None:
    """Links lead into the repository at the tag, or are text; each text stays."""
    readme = (ROOT / "README.md").read_text()
    shown = release.description(readme, repository, "v1")
    assert re.findall(r"\]\((?!https?:)[^)]*\)", shown) == []
    if repository is not None:
        assert f"[tutorial]({repository}/blob/v1/docs/tutorial.md)" in shown
        assert f"]({repository}/raw/v1/docs/results/" in shown
    else:
        assert "the tutorial." in shown


def test_workflows_and_pages_name_targets_that_exist() -> None:
    """Each `make TARGET` of the workflows, README and guides is a target of the Makefile."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    guides = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")]
    for path in (*workflows, *guides):
        named = re.findall(r"(?:run: |`|^)make ([a-z][\w-]*)", path.read_text(), re.M)
        assert set(named) <= targets, path.name
    matrix = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["vllm"]
    assert set(matrix["strategy"]["matrix"]["target"]) <= targets
