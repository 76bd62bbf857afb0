"""A server with faults, in a process that can be stopped and killed.

`python -m tests.client.faulty_server PORT CALLS OURS`: how it treats calls of a model, and those of
`/v1/agentkv`. It prints a line when it listens.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentkv.protocol import WIRE_VERSION
from tests.scripted_apis import json_body
from tests.scripted_server import ScriptedReply

HTML = b"<html><body><h1>Bad gateway</h1></body></html>"


class FaultyHandler(BaseHTTPRequestHandler):
    """Answers as the two words on the command line say."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        calls, ours = sys.argv[2:]
        is_ours = self.path.startswith("/v1/agentkv")
        match ours if is_ours else calls:
            case "well":
                info = {"version": "0", "wire_version": WIRE_VERSION, "policy": "agentkv"}
                reply: Any = info if is_ours else json_body(self.path, ScriptedReply("ok"))
                self._send(200, "application/json", json.dumps(reply).encode())
            case "bad gateway":
                self._send(502, "text/html", HTML)
            case "html":
                self._send(200, "text/html", HTML)
            case "redirect":
                self._send(302, "text/html", HTML)
            case "drip":
                self._send(200, "application/json", b" ", num_bytes=1_000_000)
                while True:
                    self.wfile.write(b" ")
                    time.sleep(0.05)
            case "hang":
                time.sleep(3600)
            case "reset":
                self.close_connection = True
                self.connection.close()

    def do_POST(self) -> None:
        self.do_GET()

    def _send(self, status: int, content_type: str, body: bytes, num_bytes: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(num_bytes or len(body)))
        if status == 302:
            self.send_header("Location", self.path)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a client that left."""


if __name__ == "__main__":
    server = _Server(("127.0.0.1", int(sys.argv[1])), FaultyHandler)
    print("listens", flush=True)
    server.serve_forever()
