"""The outermost layer: every answer carries `x-request-id`, and no fault of ours shows more than that it was one."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp

from common import trace
from common.errors import RequestError
from gateway import headers, sse
from gateway.connection import Message, Receive, Send
from gateway.service import Service

log = logging.getLogger("gateway.request")

CLOSE = (b"connection", b"close")


class Edge:
    """Tags requests and answers; while the gateway drains it also tells clients to open their next connection elsewhere."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = headers.request_id(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        trace.enter(headers.find(scope["headers"], b"traceparent"))
        started = False

        async def tagged(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                extra = [(b"x-request-id", request_id), CLOSE] if self._service.draining else [(b"x-request-id", request_id)]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except Exception as error:
            log.exception("Fault x_request_id=%s", request_id.decode(), exc_info=error)
            if started:
                raise
            await _answer_fault(tagged)


async def _answer_fault(send: Send) -> None:
    data = sse.dumps(RequestError("internal", "Internal error").body())
    await send({"type": "http.response.start", "status": 500, "headers": [headers.JSON, (b"content-length", b"%d" % len(data))]})
    await send({"type": "http.response.body", "body": data})
