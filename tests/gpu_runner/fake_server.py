"""A server that streams as vLLM's does, from the standard library; a request's tenant says how it is treated."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN_S = 0.01


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_GET(self) -> None:
        self._whole(200, self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append({**body, "path": self.path, "authorization": self.headers.get("Authorization")})
        how = body.get("vllm_xargs", {}).get("prefillsim_tenant")
        if how == "refused":
            self._whole(400, {"error": {"message": "the prompt\nis too long", "code": 400}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for k in range(1, body["max_tokens"] + 1):
            time.sleep(TOKEN_S)
            if how == "broken" and k == 3:
                self.close_connection = True
                self.wfile.flush()
                return
            if how == "failing" and k == 3:
                self._event({"error": {"message": "engine died", "code": 500}})
                break
            if how == "double" and k % 2 and k < body["max_tokens"]:
                continue
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": k}
            event = {"choices": [{"index": 0, "text": "é"}]}
            self._event(event if how == "plain" else {**event, "usage": usage})
        details = {"prompt_tokens_details": {"cached_tokens": 16}} if how == "cached" else {}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"], **details}
        self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _whole(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: Any = {"data": [{"id": "tiny", "max_model_len": 4096}, {"id": "other"}]}
        self.seen: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
