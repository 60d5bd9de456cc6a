"""Takes the port before anything slow. Runs with any Python from 3.6 on, as the first step of `make run` needs it."""

import ipaddress
import socket
from typing import Mapping

DEFAULT_PORT = 8080


class Refused(Exception):
    """The start cannot go on; the text is the one line that says what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that survives `exec`; raises `Refused` when the port cannot be had."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        other = DEFAULT_PORT + 1 if port <= DEFAULT_PORT else port % 65535 + 1
        raise Refused(f"Port {port} of {host} cannot be used ({error.strerror}): take another one, PORT={other} make run") from None
    listener.set_inheritable(True)
    return listener


def listen_as_told(env: Mapping[str, str]) -> socket.socket:
    """Listens where `HOSTNAME` and `PORT` say; no IP address, or `tcp://…`, counts as unset."""
    host = env.get("HOSTNAME", "")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        host = "127.0.0.1"
    text = env.get("PORT", "").strip()
    if not text or "://" in text:
        text = str(DEFAULT_PORT)
    if not text.isdigit() or int(text) > 65535:
        raise Refused(f"Invalid argument: PORT={text}, allowed is a whole number of at least 0 and at most 65535")
    return listen(host, int(text))
