"""The six Lua scripts, assembled from `lua/` (their headers say KEYS, ARGV and reply)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

NAMES = ("submit", "pull", "flush", "finish", "cancel", "release")

_FOLDER = Path(__file__).parent / "lua"
_INCLUDE = re.compile(r"^--@include (.+)$", re.MULTILINE)


@cache
def source(name: str) -> str:
    """The script's text with its parts in place."""
    text = (_FOLDER / f"{name}.lua").read_text()
    return _INCLUDE.sub(lambda match: "".join(map(_part, match[1].split())), text)


def _part(name: str) -> str:
    return (_FOLDER / "parts" / f"{name}.lua").read_text()
