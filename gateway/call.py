"""One HTTP request as route functions see it, and the ASGI endpoint around a route function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from common.errors import RequestError
from gateway import body, headers, session, sse
from gateway.auth import ANYBODY, Key
from gateway.connection import Message, Receive, Send
from gateway.schemas.fields import Record
from gateway.service import Service
from gateway.session import Session
from gateway.shares import Share

R = TypeVar("R", bound=tuple[Any, ...])


@dataclass(slots=True)
class Call:
    """A request and the way to answer it."""

    service: Service
    scope: Message
    receive: Receive
    send: Send
    key: Key

    @property
    def share(self) -> Share:
        """What this caller's key has under way."""
        return self.service.shares[self.key.name]

    @property
    def request_id(self) -> str:
        """Set by the outermost layer."""
        return str(self.scope["state"]["request_id"])

    async def read(self, record: Record[R]) -> R:
        """The body as a record; checks content type, size, syntax and shape in TGI's order."""
        return record(await self.json())

    async def json(self) -> Any:
        """The body's JSON, of any shape."""
        given = self.scope["headers"]
        body.require_json(headers.find(given, b"content-type"))
        data = await body.read(self.receive, headers.length(given), self.service.settings.payload_limit)
        return body.parse(data)

    def session(self, request: object) -> Session:
        """What the headers say about coming back, retrying and waiting."""
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.scope["headers"]}
        name = self.key.name.encode() if self.service.keys.guards else None
        return session.read(given, session.caller(name, self.service.settings.farm), request)

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
        key = self._service.keys.admits(headers.find(scope["headers"], b"authorization")) if self._protected else ANYBODY
        call = Call(self._service, scope, receive, send, key or ANYBODY)
        if key is None:
            await call.answer(401)
            return
        try:
            await self._handler(call)
        except RequestError as error:
            await call.refuse(error)
        except body.ClientGone:
            return
