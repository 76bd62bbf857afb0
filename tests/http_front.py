"""A small HTTP server in a thread: JSON in; JSON, or a stream of events, out.

The scripted server answers through it, by HTTP/1.1 with persistent connections and chunks.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a body: a JSON value, or the events of a stream."""

    status: int
    body: Any
    cut_after_events: int | None = None


MALFORMED = object()
Answerer = Callable[[str, str, Mapping[str, str], Any], Answer]


class HttpFront:
    """Listens on a free port of 127.0.0.1 and answers with what `answer` returns.

    It is given method, path, headers with names in lower case, and the JSON of the body: None
    without a body, MALFORMED if it cannot be parsed.
    """

    def __init__(self, answer: Answerer) -> None:
        self._server = _Server(answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="scripted-server", daemon=True
        )
        self._is_stopped = False

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Begin to answer; the port is reserved by the constructor."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port and cut every connection; a second call does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._thread.ident is not None:
            self._server.shutdown()
        self._server.server_close()
        self._server.cut_connections()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, answer: Answerer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a client that closed its connection, or whose we cut."""

    def cut_connections(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one packet

    def do_GET(self) -> None:
        self._reply(None)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        try:
            body = json.loads(self.rfile.read(length) or b"null")
        except ValueError:
            body = MALFORMED
        self._reply(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write no access log."""

    def _reply(self, body: Any) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        found = self.server.answer(self.command, self.path, headers, body)  # type: ignore[attr-defined]
        send = self._send_stream if isinstance(found.body, Iterator) else self._send_json
        send(found)

    def _send_json(self, found: Answer) -> None:
        payload = json.dumps(found.body).encode()
        self._send_head(found.status, "application/json", "Content-Length", str(len(payload)))
        self.wfile.write(payload)
        self.wfile.flush()

    def _send_stream(self, found: Answer) -> None:
        self._send_head(found.status, "text/event-stream", "Transfer-Encoding", "chunked")
        for event in islice(found.body, found.cut_after_events):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
        if found.cut_after_events is not None:
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _send_head(self, status: int, content_type: str, name: str, value: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header(name, value)
        self.end_headers()
