"""A worker's own `/metrics`: a unix socket beside the broker's on one host, else a port."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from common import metrics
from common.config import Settings


class MetricsPage:
    """Answers every request with the page; `url` is what the worker's record says."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.url = ""
        self._registry = registry

    async def open(self, settings: Settings) -> None:
        broker = urlsplit(settings.redis_url)
        if broker.scheme == "unix":
            path = Path(broker.path).parent / f"metrics-{os.getpid()}.sock"
            await asyncio.start_unix_server(self._answer, path)
            self.url = f"unix://{path}"
            return
        server = await asyncio.start_server(self._answer, settings.hostname, settings.metrics_port)
        self.url = f"http://{socket.gethostname()}:{server.sockets[0].getsockname()[1]}/metrics"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
                page = metrics.exposition(self._registry)
                head = ("HTTP/1.1 200 OK", f"Content-Type: {metrics.CONTENT_TYPE}", f"Content-Length: {len(page)}", "Connection: close")
                writer.write("\r\n".join((*head, "", "")).encode() + page)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writer.close()
