"""API keys (TGI reference §1.0): compared exactly and in constant time; the scheme's case does not matter (RFC 9110).

A file of keys has one per line: a name, the key, and what it may have under way on each gateway, `running=8 queued=32`.
Names appear in metrics, keys nowhere.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common.errors import StartError


class Key(NamedTuple):
    """Whose request it is."""

    name: str
    secret: bytes = b""
    max_running: int | None = None
    max_queued: int | None = None


ANYBODY = Key("anonymous")

_LINE = re.compile(r"(?P<name>[\w.-]{1,64})\s+(?P<secret>[!-~]+)(?P<limits>(\s+(running|queued)=\d{1,9})*)\s*", re.ASCII)


class Keys:
    """Without any key everybody may enter."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = tuple(keys)
        self.all = self._keys or (ANYBODY,)

    @property
    def guards(self) -> bool:
        return bool(self._keys)

    def admits(self, authorization: bytes | None) -> Key | None:
        """Whose key is in the header `Bearer <key>`; None: nobody's."""
        if not self._keys:
            return ANYBODY
        scheme, _, given = (authorization or b"").partition(b" ")
        equal = [hmac.compare_digest(given.strip(), key.secret) for key in self._keys]
        if scheme.lower() != b"bearer" or True not in equal:
            return None
        return self._keys[equal.index(True)]


def keys_of(api_key: str | None, path: str | None) -> Keys:
    """The one key, called `default`, and those of the file; raises `StartError` for a file that is not as it should be."""
    keys = [] if api_key is None else [Key("default", api_key.encode("utf-8"))]
    if path:
        keys += _read(path)
    for what, values in (("name", [key.name for key in keys]), ("key", [key.secret for key in keys])):
        if len(set(values)) < len(values):
            raise StartError(f"FARM_API_KEYS_FILE={path}: the same {what} is there twice")
    return Keys(keys)


def _read(path: str) -> list[Key]:
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"FARM_API_KEYS_FILE={path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    keys = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or match["name"] in ("default", ANYBODY.name):
            raise StartError(f"FARM_API_KEYS_FILE={path}: line {number}, allowed is NAME KEY [running=N] [queued=N]")
        limits = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", match["limits"])}
        if limits.get("running") == 0:
            raise StartError(f"FARM_API_KEYS_FILE={path}: line {number}, running=0, allowed is at least 1")
        keys.append(Key(match["name"], match["secret"].encode(), limits.get("running"), limits.get("queued")))
    return keys
