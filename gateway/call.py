"""One HTTP request as route functions see it, and the ASGI endpoint around a route function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from common.errors import RequestError
from gateway import body, headers, sse
from gateway.connection import Message, Receive, Send
from gateway.schemas.fields import Record
from gateway.service import Service

R = TypeVar("R", bound=tuple[Any, ...])


@dataclass(slots=True)
class Call:
    """A request and the way to answer it."""

    service: Service
    scope: Message
    receive: Receive
    send: Send

    @property
    def request_id(self) -> str:
        """Set by the outermost layer."""
        return str(self.scope["state"]["request_id"])

    async def read(self, record: Record[R]) -> R:
        """The body as a record; checks content type, size, syntax and shape in TGI's order."""
        given = self.scope["headers"]
        body.require_json(headers.find(given, b"content-type"))
        data = await body.read(self.receive, headers.length(given), self.service.settings.payload_limit)
        return record(body.parse(data))

    async def answer(self, status: int, data: bytes = b"", extra: headers.Headers | None = None) -> None:
        """A complete response."""
        given = [*(extra or ()), (b"content-length", b"%d" % len(data))]
        await self.send({"type": "http.response.start", "status": status, "headers": given})
        await self.send({"type": "http.response.body", "body": data})

    async def answer_json(self, value: Any, extra: headers.Headers | None = None) -> None:
        await self.answer(200, sse.dumps(value), [headers.JSON] if extra is None else extra)

    async def refuse(self, error: RequestError) -> None:
        """TGI's flat error object with its status."""
        extra = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        await self.answer(error.status, sse.dumps(error.body()), [headers.JSON, *extra])


Handler = Callable[[Call], Awaitable[None]]


class Endpoint:
    """Runs a route function as a bare ASGI application; `protected` ones ask for the API key before anything else."""

    def __init__(self, service: Service, handler: Handler, protected: bool = False) -> None:
        self._service = service
        self._handler = handler
        self._protected = protected

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        call = Call(self._service, scope, receive, send)
        if self._protected and not self._service.key.admits(headers.find(scope["headers"], b"authorization")):
            await call.answer(401)
            return
        try:
            await self._handler(call)
        except RequestError as error:
            await call.refuse(error)
        except body.ClientGone:
            return
