"""Facts about `agentkv verify-pin` where there is nothing to verify."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentkv.evals.commands.verify_pin import main
from agentkv.evals.server import ServerUnderTest, TurnError
from agentkv.testing.http_front import Answer, HttpFront

NOBODY = "http://127.0.0.1:9/v1"


@pytest.fixture
def other_server() -> Iterator[str]:
    """A web server that is no vLLM server."""
    handler = http.server.BaseHTTPRequestHandler
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


def test_a_server_that_is_not_there_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and one line that names the address."""
    assert main(["--base-url", NOBODY]) == 2
    captured = capsys.readouterr()
    assert NOBODY in captured.err
    assert captured.out == ""


def test_a_server_of_another_kind_is_bad_usage(
    other_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 and what the server answered."""
    assert main(["--base-url", other_server]) == 2
    assert "501" in capsys.readouterr().err


def test_answers_of_another_shape_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the plugin's facts, with status 2; a reply without usage breaks the run off."""
    models = {"data": [{"id": "m"}]}
    front = HttpFront(lambda _, path, *rest: Answer(200, models if "models" in path else {}))
    front.start()
    try:
        assert main(["--base-url", front.url]) == 2
        with ServerUnderTest(front.url) as server, pytest.raises(TurnError, match="no chat reply"):
            server.chat("m", [], job_id="job", is_last_step=False)
    finally:
        front.stop()
    assert "/v1/agentkv/info names no policy" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--base-url", NOBODY, "--gap-s", "0"]])
def test_bad_options_are_bad_usage(options: list[str]) -> None:
    """argparse's own status, 2, for what is missing or out of range."""
    with pytest.raises(SystemExit) as raised:
        main(options)
    assert raised.value.code == 2


def test_an_out_that_cannot_be_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told before the server is asked, not after the run."""
    (tmp_path / "file").write_text("")
    assert main(["--base-url", NOBODY, "--out", str(tmp_path / "file")]) == 2
    assert "verify_pin.json cannot be written" in capsys.readouterr().err


def test_a_result_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An --out that holds a run already is refused before anything is asked of a server."""
    (tmp_path / "verify_pin.json").write_text("{}")
    assert main(["--base-url", NOBODY, "--out", str(tmp_path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "verify_pin.json").read_text() == "{}"
