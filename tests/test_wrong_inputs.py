"""Wrong inputs of every command: one line on standard error that says what to do, at once."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentkv.cli import main

GPU = "simulate --gpu h100"
TAKE_A_FILE = ("record", f"{GPU} --trace", "bench --trace", "plot --out figures")
CONFIG = "serve --additional-config"
DEAD = "http://127.0.0.1:9"

WRONG = [
    # the command, a flag, a name: what was probably meant
    ("serv", "unknown command: got 'serv': did you mean serve?"),
    ("doctor --ulr x", "unknown flag: got '--ulr': did you mean --url?"),
    ("bench --xyz", "unknown flag: --xyz"),
    ("swebench rn", "SUBCOMMAND: got 'rn': did you mean run?"),
    (f"run cluade {DEAD}", "AGENT: got 'cluade': did you mean claude?"),
    ("bench --policy agentvk", "--policy: got 'agentvk': did you mean agentkv?"),
    (f"{GPU}0", "--gpu: got 'h1000': did you mean h100?"),
    (f"{GPU} --policy agentvk", "--policy: got 'agentvk': did you mean agentkv?"),
    (f"{GPU} --model gpt-5", "--model: got 'gpt-5', allowed are llama-3.1-8b"),
    (f"{GPU} --workload swebnech", "--workload: got 'swebnech': did you mean swebench?"),
    (f"{GPU} --tools longtial", "--tools: got 'longtial': did you mean longtail?"),
    (f"{GPU} --policy", "--policy: expected one argument"),
    # a value
    (f"{GPU} --blocks 0", "--blocks: got '0', allowed is a number from 2 on, or infinite"),
    (f"{GPU} --jps -1", "--jps: got -1, must be a number above 0"),
    (f"{GPU} --jps many", "--jps: got many, must be a number above 0"),
    (f"{GPU} --jobs -5", "--jobs: got -5, must be 1 or more"),
    (f"{GPU} --clients alice=0", "--clients: got 0, must be a load above 0"),
    (f"{GPU} --clients alice,=1", "--clients: got alice,=1, must be clients and loads"),
    (f"{GPU} --jobs few", "--jobs: invalid whole number value: 'few'"),
    (f"{GPU} --gpu-memory-utilization 2", "got 2, must be above 0 and at most 1"),
    ("simulate", "required: --gpu"),
    ("explain", "give either a JOB, or a LOG, or --worst N"),
    ("explain --worst 11", "--worst: got 11, allowed are 1 to 10"),
    ("run claude", "required: URL"),
    # a file
    *((f"{command} nofile", "nofile: no such file") for command in TAKE_A_FILE),
    ("plot folder --out figures", "folder: no turns.jsonl in it or below it"),
    ("plot empty --out figures", "empty: no turns.jsonl in it or below it"),
    ("bench --out empty", "empty: File exists"),
    (f"{GPU} --policy nofile.py:X", "nofile.py: no such file"),
    (f"{GPU} --trace folder", "folder: no log in it that can be read"),
    (f"{GPU} --trace empty", "empty: is empty"),
    (f"{GPU} --trace binary", "binary: of no known kind"),
    ("simulate --gpu broken", "broken: the file: Invalid JSON"),
    ("record folder", "folder: no event log of a server; explain reads agents' logs"),
    ("swebench report nofile", "nofile/run.json"),
    # a server
    ("doctor --url 127.0.0.1:8000", "--url: got '127.0.0.1:8000', did you mean http://127.0.0.1"),
    ("bench --url 127.0.0.1:8", "got '127.0.0.1:8', did you mean http://127.0.0.1:8?"),
    ("explain job --url ftp://x", "--url: got 'ftp://x', give one like http://127.0.0.1:8000"),
    ("run claude localhost", "URL: got 'localhost', did you mean http://localhost?"),
    ("run claude http://", "URL: got 'http://', give one like http://127.0.0.1:8000"),
    *((f"run claude {url}", "ive --model NAME") for url in ("http://[::1", "http://a:b")),
    (f"bench --url {DEAD} --jobs 1", "no answer (ConnectError"),
    (f"verify-pin --url {DEAD}", "no answer (ConnectError"),
    (f"simulate calibrate --base-url {DEAD} --out p.json", "no answer (ConnectError"),
    (f"explain job --url {DEAD}", "is the server running?"),
    (f"record {DEAD}", "is the server running?"),
    (f"replay {DEAD}", "is the server running?"),
    (f"run claude {DEAD}", "ive --model NAME"),
    (
        "explain job --url PAGES",
        "runs without agentkv's policies: start it with --scheduling-policy",
    ),
    ("record PAGES", "runs without agentkv's policies: start it with --scheduling-policy"),
    ("bench --url PAGES --jobs 1", "HTTP 404 with a page for browsers"),
    # what vLLM would refuse after half a minute
    ("serve --scheduling-policy agentvk", "--scheduling-policy: got 'agentvk': did you mean"),
    ("serve --scheduling-policy nofile.py:X", "nofile.py: no such file"),
    (f'{CONFIG} {{"agentkv":{{', "is not JSON"),
    (f"{CONFIG} [1]", "got [1], allowed is a JSON object"),
    (
        f'{CONFIG} {{"agentkv":{{"patiense_s":4}}}}',
        "got 'patiense_s': did you mean patience_s?",
    ),
    (f'{CONFIG} {{"agentkv":{{"patience_s":-4}}}}', "'patience_s': Input should be greater than 0"),
    (
        f'{CONFIG} {{"agentkv":{{"patience_s":"x"}}}}',
        "'patience_s': Input should be a valid",
    ),
    *(
        (f"serve --port {port}", f"--port {port}: a port is a whole number from 0 to 65535")
        for port in ("eighty", "70000", "-1")
    ),
    ("serve ./folder", "no model in ./folder (no config.json there)"),
    *(
        (f"serve --kv-tier-gib {size}", f"got {size}, must be a number above 0")
        for size in ("0", "-1", "much", "inf")
    ),
    ("run", "no command given"),
]


class Page(BaseHTTPRequestHandler):
    """A web server that is none of models."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def pages() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_input_is_one_line(
    line: str,
    message: str,
    pages: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 2, nothing on standard output, and one line that begins with the command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name, content in {"empty": b"", "binary": b"\xff\xfe\0\n", "broken": b'{"a"\n'}.items():
        (tmp_path / name).write_bytes(content)
    stand_ins = {"EMPTY": "", "PAGES": pages}
    argv = [stand_ins.get(word, word) for word in line.split()]
    try:
        status = main(argv)
    except SystemExit as error:
        status = error.code  # type: ignore[assignment]
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert message in printed.err
    assert re.match(r"agentkv(?! (\S+): \1: )", printed.err), "begins with its name, once"
    assert line == "run" or printed.err.count("\n") == 1, printed.err  # which shows how it is used


def test_serve_refuses_before_anything_heavy_is_imported() -> None:
    """A wrong policy is named by a process that has loaded neither vLLM nor numpy."""
    program = (
        "import sys; from agentkv.cli import main; status = main(sys.argv[1:]);"
        "print(status, [name for name in ('vllm', 'torch', 'numpy') if name in sys.modules])"
    )
    words = ["serve", "--max-model-len", "4", "--scheduling-policy", "agentvk"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 []\n"
