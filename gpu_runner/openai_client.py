"""A streaming client of an OpenAI-compatible server that does nothing but note times while tokens arrive.

Every request has a connection of its own, and what comes in is only kept, with the time at which it came; HTTP, events
and JSON are read when all is over. So thousands of tokens a second do not make the client late.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from gpu_runner.engine import EngineError

ANSWER_S = 30.0
"""Longest wait for the list of models, which a server gives at once."""

LAST_CHUNK = b"\r\n0\r\n\r\n"


class ServerError(EngineError):
    """A server that cannot be used at all; the message says what would be right."""


@dataclass
class Answer:
    """What came back of one request; times on the clock that the client was given."""

    sent_ns: int = -1
    """When its first byte was sent, connection included; -1: it never was."""
    token_ns: list[int] = field(default_factory=list)
    """When each output token came."""
    cached_tokens: int | None = None
    """Prompt tokens that the prefix cache served, where the server says so."""
    finished: bool = False
    problem: str | None = None
    """Why there is no whole answer."""
    stream: _Stream | None = field(default=None, repr=False, compare=False)
    """What came, before it is read."""

    def settle(self) -> None:
        """Read what came, as far as it came. Takes about 10 µs per token, which is why it is not done meanwhile."""
        if self.stream is not None:
            _read(self.stream, self)
            self.stream = None


@dataclass(frozen=True)
class Server:
    """Where an OpenAI-compatible server is, and what it serves."""

    host: str
    port: int
    path: str
    """Before ``/v1``."""
    secure: bool
    model: str
    max_model_len: int | None
    """``None`` where the server does not say."""
    headers: Mapping[str, str]

    def request(self, body: bytes) -> bytes:
        """Return the bytes of a completion request."""
        head = {
            "Host": f"{self.host}:{self.port}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **self.headers,
        }
        lines = [f"POST {self.path}/v1/completions HTTP/1.1", *(f"{k}: {v}" for k, v in head.items()), "", ""]
        return "\r\n".join(lines).encode() + body

    async def complete(self, message: bytes, answer: Answer, now_ns: Callable[[], int]) -> None:
        """Send a request and wait for the end of its answer; whatever goes wrong is the answer's ``problem``.

        Args:
            message: of :meth:`request`.
            answer: has what came, even where this is cancelled, and is to be settled when all is over.
            now_ns: the clock.
        """
        loop = asyncio.get_running_loop()
        answer.stream = stream = _Stream(message, now_ns, loop.create_future())
        transport = None
        try:
            context = ssl.create_default_context() if self.secure else None
            transport, _ = await loop.create_connection(lambda: stream, self.host, self.port, ssl=context)
            await stream.ended
        except OSError as e:
            stream.problem = f"the connection failed: {e.strerror or e}"
        finally:
            if transport is not None:
                transport.close()


def find_server(url: str, model: str | None = None, api_key: str | None = None) -> Server:
    """Ask a server what it serves.

    Args:
        url: such as ``http://127.0.0.1:8000``, with or without ``/v1``.
        model: which of its models; the first by default.
        api_key: sent as a bearer token.

    Raises:
        ServerError: if nobody answers there, or not as such a server would, or it has no such model.
    """
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or (":" in parts.netloc.rpartition("]")[2] and not port)
    ):
        raise ServerError(f"--server {url} should read http://HOST:PORT")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    root = f"{parts.scheme}://{parts.netloc}{path}"
    try:
        # A proxy between client and server would be measured too, and a server under test is reached without one.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(f"{root}/v1/models", headers=headers), timeout=ANSWER_S) as reply:
            listed = json.loads(reply.read())["data"]
        served = {str(entry["id"]): entry for entry in listed}
    except urllib.error.HTTPError as e:
        e.close()
        raise ServerError(f"the server at {url} answers {e.code} {e.reason} to {root}/v1/models") from None
    except OSError as e:
        reason = getattr(e, "reason", e)
        raise ServerError(f"no server answers at {url}: {getattr(reason, 'strerror', None) or reason}") from None
    except (ValueError, KeyError, TypeError):
        raise ServerError(
            f"what answers at {url} is no OpenAI-compatible server: {root}/v1/models lists none"
        ) from None
    if not served:
        raise ServerError(f"the server at {url} serves no model")
    name = model or next(iter(served))
    if name not in served:
        raise ServerError(f"the server at {url} does not serve {name}; it serves {', '.join(served)}")
    longest = served[name].get("max_model_len")
    secure = parts.scheme == "https"
    return Server(
        parts.hostname,
        port or (443 if secure else 80),
        path,
        secure,
        name,
        longest if isinstance(longest, int) else None,
        headers,
    )


def completion(model: str, prompt: list[int], max_tokens: int, extra: Mapping[str, Any]) -> bytes:
    """Return the body of a request for exactly ``max_tokens`` tokens, streamed; ``extra`` goes to vLLM's scheduler."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        # Some events carry several tokens, some of them a text of no letters: only the usage tells how many.
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if extra:
        body["vllm_xargs"] = dict(extra)
    return json.dumps(body, separators=(",", ":")).encode()


class _Stream(asyncio.Protocol):
    """Sends one message and keeps what comes back, with the times."""

    def __init__(self, message: bytes, now_ns: Callable[[], int], ended: asyncio.Future[None]) -> None:
        self._message, self._now_ns = message, now_ns
        self.ended = ended
        self.sent_ns = -1
        self.pieces: list[bytes] = []
        self.times: list[int] = []
        self.problem: str | None = None
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.sent_ns = self._now_ns()
        transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        self.times.append(self._now_ns())
        self.pieces.append(data)
        self._tail = (self._tail + data[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]
        if self._tail == LAST_CHUNK:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.problem = f"the connection broke: {getattr(exc, 'strerror', None) or exc}"
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _read(stream: _Stream, answer: Answer) -> None:
    """Read HTTP, events and JSON of what came."""
    answer.sent_ns, answer.problem = stream.sent_ns, stream.problem
    raw = b"".join(stream.pieces)
    head, blank, rest = raw.partition(b"\r\n\r\n")
    if not blank:
        answer.problem = answer.problem or "the connection closed without an answer"
        return
    lines = head.decode("latin-1").split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    start = len(raw) - len(rest)
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    parts = list(_chunks(rest, start)) if chunked else [(rest, len(raw))]
    status = lines[0].split(" ", 1)[-1]
    if not status.startswith("200"):
        answer.problem = f"the server answered {status}: {_told(b''.join(p for p, _ in parts))}"
        return
    tokens, ended = 0, False
    ends, position = [], 0
    for piece in stream.pieces:
        position += len(piece)
        ends.append(position)
    at = 0
    for event, offset in _events(parts):
        if event == b"[DONE]":
            ended = True
            continue
        while ends[at] < offset:
            at += 1
        try:
            data = json.loads(event)
            choices, usage = data.get("choices") or [], data.get("usage") or {}
        except (ValueError, AttributeError):
            answer.problem = "the server sent an event that is not JSON"
            return
        if error := data.get("error"):
            answer.problem = f"the server failed: {_told(json.dumps(error).encode())}"
            return
        if (details := usage.get("prompt_tokens_details")) and details.get("cached_tokens") is not None:
            answer.cached_tokens = int(details["cached_tokens"])
        counted = usage.get("completion_tokens")
        new = (len(choices) and 1) if counted is None else int(counted) - tokens
        answer.token_ns += [stream.times[at]] * new
        tokens += new
    answer.finished = ended and answer.problem is None
    if not ended and answer.problem is None:
        answer.problem = "the answer broke off"


def _chunks(body: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield each whole chunk of a chunked body, and where it ends, counted from the start of the answer."""
    at = 0
    while (line_end := body.find(b"\r\n", at)) >= 0:
        try:
            size = int(body[at:line_end].partition(b";")[0], 16)
        except ValueError:
            return
        at = line_end + 2
        if size == 0 or at + size > len(body):
            return
        yield body[at : at + size], start + at + size
        at += size + 2


def _events(parts: list[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Yield the data of each server-sent event, and where the part that ends it ends."""
    pending = b""
    for part, end in parts:
        pending += part.replace(b"\r\n", b"\n")
        *whole, pending = pending.split(b"\n\n")
        for event in whole:
            lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines), end


def _told(body: bytes) -> str:
    """Return the message in an error's body, in one line."""
    text = body.decode(errors="replace").strip()
    try:
        data = json.loads(text)
        data = data.get("error", data)
        text = str(data.get("message", data)) if isinstance(data, dict) else str(data)
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:300] or "nothing more"
