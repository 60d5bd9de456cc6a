"""The application: routes, the layers around them, and TGI's statuses with JSON bodies for what no route takes."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.errors import RequestError
from gateway import sse
from gateway.call import Endpoint, Handler
from gateway.connection import Message, Receive, Send
from gateway.edge import Edge
from gateway.routes import chat, completions, discovery, docs, ops, sagemaker, tgi
from gateway.service import Service

PROTECTED: dict[str, Handler] = {
    "/generate_stream": tgi.generate_stream,
    "/generate": tgi.generate,
    "/tokenize": tgi.tokenize,
    "/v1/chat/completions": chat.chat,
    "/v1/completions": completions.completions,
    "/chat_tokenize": chat.chat_tokenize,
    "/invocations": sagemaker.invocations,
}
"""POST, behind the API key."""

OPEN: dict[str, Handler] = {
    "/health": ops.health,
    "/ping": ops.health,
    "/health/live": ops.live,
    "/health/accept": ops.accept,
    "/info": ops.info,
    "/v1/models": ops.models,
    "/v1/models/{id:path}": ops.model,
    "/metrics": ops.prometheus,
    "/docs": docs.page,
    "/docs/": docs.page,
    "/api-doc/openapi.json": docs.openapi,
    "/sd/workers": discovery.workers,
    "/farm": discovery.farm,
}
"""GET and HEAD, for everybody."""


def create(service: Service) -> FastAPI:
    """The ASGI application of one gateway."""
    app = FastAPI(title="tokenfarm", openapi_url=None, redirect_slashes=False, exception_handlers={HTTPException: _not_served})
    root = {"GET": Endpoint(service, ops.health), "POST": Endpoint(service, tgi.compat, protected=True)}
    app.router.routes.extend(
        [
            *(Route(path, Endpoint(service, handler, protected=True), methods=["POST"]) for path, handler in PROTECTED.items()),
            Route("/", ByMethod(root), methods=list(root)),
            *(Route(path, Endpoint(service, handler), methods=["GET"]) for path, handler in OPEN.items()),
        ]
    )
    app.add_middleware(
        CORSMiddleware,
        allow_origins=service.settings.cors_allow_origin or ("*",),
        allow_methods=("GET", "POST"),
        allow_headers=("content-type", "authorization", "x-request-id"),
        expose_headers=("x-request-id",),
    )
    app.add_middleware(Edge, service=service)
    return app


class ByMethod:
    """One path with an endpoint per method; HEAD is GET."""

    def __init__(self, endpoints: dict[str, Endpoint]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await self._endpoints.get(scope["method"], self._endpoints["GET"])(scope, receive, send)


async def _not_served(_: Request, error: Exception) -> Response:
    """Unknown path or method: clients need JSON with `error` on everything that is not 200."""
    assert isinstance(error, HTTPException)
    kind = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "validation")
    refusal = RequestError(kind, error.detail, status=error.status_code)
    return Response(sse.dumps(refusal.body()), error.status_code, dict(error.headers or {}), "application/json")
