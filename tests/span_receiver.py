"""A receiver of OpenTelemetry's spans over HTTP, in the place of a collector."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class SpanReceiver:
    """What has arrived so far, at `url`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.resources: list[ResourceSpans] = []

    @property
    def spans(self) -> list[Span]:
        scopes = [scope for resource in self.resources for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]


@contextmanager
def span_receiver() -> Iterator[SpanReceiver]:
    """Receive spans until the block is left."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.resources.extend(ExportTraceServiceRequest.FromString(body).resource_spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = SpanReceiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
