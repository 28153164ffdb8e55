"""A small OpenAI-compatible server in front of the hybrid engine."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from gpu_runner.engine import EngineError
from gpu_runner.hybrid.completions import Completion, Refusal, Served, events, read_completion, reply
from gpu_runner.hybrid.scheduler import Ended
from gpu_runner.hybrid.service import Service, Ticket

CLIENT_GONE = 499
GRACE_S = 5
"""Seconds that requests under way have when the server ends."""
STATUS = {"rejected": 429, "failed": 500, "aborted": CLIENT_GONE}


def make_app(service: Service, served: Served) -> FastAPI:
    """Return the application: ``/v1/completions``, ``/v1/models`` and ``/health``; its end closes the service."""
    created = int(time.time())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(title="prefillsim", lifespan=lifespan)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(request: Request) -> Response:
        card = {
            "id": served.name,
            "object": "model",
            "created": created,
            "owned_by": "prefillsim",
            "max_model_len": served.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def complete(request: Request) -> Response:
        return await _complete(request, service, served)

    for path, method, serve in (
        ("/health", "GET", health),
        ("/v1/models", "GET", models),
        ("/v1/completions", "POST", complete),
    ):
        app.add_api_route(path, serve, methods=[method], response_model=None)
    app.add_exception_handler(Refusal, _refuse)
    return app


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one.

    Raises:
        EngineError: if the address cannot be had.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as e:
        raise EngineError(f"cannot listen at {host}:{port}: {e.strerror or e}") from None


def run(app: FastAPI, sock: socket.socket) -> None:
    """Serve until interrupted."""
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE_S)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[sock])


async def _refuse(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return JSONResponse(refusal.body, refusal.status)


async def _complete(request: Request, service: Service, served: Served) -> Response:
    try:
        body = json.loads(await request.body())
    except ValueError:
        raise Refusal("the body is not JSON") from None
    completion = read_completion(body, served)
    try:
        ticket = service.submit(completion.ids, completion.question, completion.extra)
    except ValueError as e:
        raise Refusal(str(e)) from None
    ended = await _end_of(ticket, request)
    if ended is None:
        service.cancel(ticket.request_id)
        return Response(status_code=CLIENT_GONE)
    if ended.answer is None:
        raise Refusal(ended.reason, status=STATUS[ended.outcome])
    whole = reply(completion, ended.answer, served, ticket.request_id, int(time.time()))
    if not completion.stream:
        return JSONResponse(whole)
    return StreamingResponse(_stream(completion, whole), media_type="text/event-stream")


async def _end_of(ticket: Ticket, request: Request) -> Ended | None:
    """Return how a request has ended, ``None`` where its client has gone before."""
    ended: asyncio.Future[Any] = asyncio.wrap_future(ticket.ended)
    gone: asyncio.Future[Any] = asyncio.create_task(_wait_until_gone(request))
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
    return ended.result() if ended.done() else None


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(completion: Completion, whole: dict[str, Any]) -> AsyncIterator[str]:
    for event in events(completion, whole):
        yield f"data: {json.dumps(event)}\n\n"
    yield "data: [DONE]\n\n"
