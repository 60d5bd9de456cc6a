"""The API key (TGI reference §1.0): compared exactly and in constant time; the scheme's case does not matter (RFC 9110)."""

from __future__ import annotations

import hmac


class ApiKey:
    """Without a key everybody may enter."""

    def __init__(self, key: str | None) -> None:
        self._key = None if key is None else key.encode("utf-8")

    def admits(self, authorization: bytes | None) -> bool:
        """Whether the header is `Bearer <key>`."""
        if self._key is None:
            return True
        scheme, _, given = (authorization or b"").partition(b" ")
        return hmac.compare_digest(given.strip(), self._key) and scheme.lower() == b"bearer"
