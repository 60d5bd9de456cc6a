"""A TCP proxy on 127.0.0.1: a network that tests can pause, cut and lead elsewhere."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.servers import free_port


class Proxy:
    """Forwards to `target` (a port of this host) while it is not paused."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        self._flowing = threading.Event()
        self._flowing.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def pause(self) -> None:
        """Nothing passes, nothing breaks."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def cut(self, target: int | None = None) -> None:
        """Breaks every connection; new ones lead to `target`."""
        self.target = target or self.target
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def close(self) -> None:
        self._listener.close()
        self.resume()
        self.cut()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                if self._listener.fileno() < 0:
                    return
                client.close()
                continue
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                sink.sendall(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        source.close()  # the other direction closes the other one
