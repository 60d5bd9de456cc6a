"""`python -m gateway`: one gateway process, from settings to a drained end (design §8)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn
import uvloop

from common.broker import connect
from common.config import Settings
from common.errors import RequestError, StartError
from common.logs import start_logs
from gateway.app import create
from gateway.relay import Relay
from gateway.service import Service

log = logging.getLogger("gateway")

INTERRUPT_S = 1.0
"""How long open streams may still run after Ctrl-C or when the parent is gone."""

IDLE_CONNECTION_S = 75


class Server(uvicorn.Server):
    """First SIGTERM: go on until the running requests have ended, at most `drain_s`. SIGINT and a second signal: end now."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._drain: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self.end_now if sig == signal.SIGINT else self.drain)

    def end_with(self, parent_fd: int) -> None:
        """The pipe turns readable when the parent is gone."""

        def parent_gone() -> None:
            self._loop.remove_reader(parent_fd)
            self.end_now()

        self._loop.add_reader(parent_fd, parent_gone)

    def drain(self) -> None:
        if self._drain is not None:
            self.end_now()
            return
        self._service.draining = True
        self._drain = self._loop.create_task(self._end_when_idle())

    def end_now(self) -> None:
        """What still runs ends with one error."""
        self._service.draining = True
        self._service.relay.end_all(RequestError("incomplete_generation", "Incomplete generation"))
        self.should_exit = True

    async def _end_when_idle(self) -> None:
        permits = self._service.permits
        log.info("draining requests=%d", permits.taken)
        idle = asyncio.Event()
        permits.when_idle = idle.set
        try:
            async with asyncio.timeout(self._service.settings.drain_s):
                if permits.taken:
                    await idle.wait()
        except TimeoutError:
            log.warning("the drain is over requests=%d", permits.taken)
        self.end_now()


async def serve(settings: Settings) -> None:
    """Serves until a signal or the end of the parent; raises what broke the relay."""
    redis = connect(settings.broker_url)
    service = Service(settings, Relay(redis, settings))
    listener = _listener(settings)
    server = Server(_uvicorn(service), service)
    if settings.parent_fd is not None:
        server.end_with(settings.parent_fd)
    async with asyncio.TaskGroup() as tasks:
        relay = tasks.create_task(service.relay.run())
        relay.add_done_callback(lambda _: server.end_now())
        log.info("listening on %s:%s", *listener.getsockname()[:2])
        await server.serve(sockets=[listener])
        await service.relay.leave()
        relay.cancel()
    service.threads.shutdown(wait=False, cancel_futures=True)
    await redis.aclose()


def _uvicorn(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        create(service),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_CONNECTION_S,
        timeout_graceful_shutdown=int(INTERRUPT_S),
    )


def _listener(settings: Settings) -> socket.socket:
    """The parent's socket when it gave one; raises `StartError` when the port cannot be had."""
    if settings.listen_fd is not None:
        return socket.socket(fileno=settings.listen_fd)
    listener = socket.socket(socket.AF_INET6 if ":" in settings.hostname else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.hostname, settings.port))
    except OSError as error:
        raise StartError(f"Port {settings.port} of {settings.hostname} cannot be used ({error.strerror}): set PORT", 1) from None
    return listener


def main() -> int:
    try:
        settings = Settings.from_env(os.environ, sys.argv[1:], program="tokenfarm gateway")
        start_logs(settings)
        for note in settings.notes:
            log.warning(note)
        uvloop.run(serve(settings))
    except StartError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
