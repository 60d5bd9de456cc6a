"""Pages of the metrics of workers on this host, so that one address shows the whole of a one-host farm."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from common.messages import Worker

TOGETHER_S = 0.1
MOST_BYTES = 4 * 1024 * 1024

HOST = socket.gethostname()


async def local_pages(workers: Iterable[Worker]) -> list[bytes]:
    """Pages of all local workers that answer within 100 ms together; the others are left out."""
    urls = [worker.metrics_url for worker in workers if worker.host == HOST and worker.metrics_url]
    if not urls:
        return []
    tasks = [asyncio.create_task(_page(url)) for url in urls]
    done, late = await asyncio.wait(tasks, timeout=TOGETHER_S)
    for task in late:
        task.cancel()
    return [page for task in tasks if task in done and (page := task.result())]


async def _page(url: str) -> bytes:
    """The body behind `unix:///path` or `http://host:port/path`; empty when there is none."""
    parts = urlsplit(url)
    path = "/metrics" if parts.scheme == "unix" else parts.path or "/metrics"
    try:
        if parts.scheme == "unix":
            reader, writer = await asyncio.open_unix_connection(parts.path)
        else:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except OSError:
        return b""
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: local\r\n\r\n".encode())
        answer = await reader.read(MOST_BYTES)
        while chunk := await reader.read(MOST_BYTES):
            answer += chunk
    except OSError:
        return b""
    finally:
        writer.close()
    head, _, page = answer.partition(b"\r\n\r\n")
    return page if b" 200 " in head.split(b"\r\n", 1)[0] else b""
