"""Errors that end a request, with their one table to HTTP status and TGI's `error_type` (TGI reference §1.0)."""

from __future__ import annotations

TABLE: dict[str, int] = {
    "validation": 422,
    "overloaded": 429,
    "generation": 424,
    "incomplete_generation": 500,
    "incomplete_generation_stream": 500,
    "template_error": 422,
    "tool_error": 422,
    "healthcheck": 503,
    "suffix not supported": 422,
    "batch size exceeded": 422,
    "not_found": 404,
    "method_not_allowed": 405,
    "payload_too_large": 413,
    "deadline": 504,
    "internal": 500,
}
"""error_type → HTTP status."""


class RequestError(Exception):
    """Ends one request with exactly one clear error; `kind` is a key of `TABLE`."""

    def __init__(self, kind: str, message: str, headers: dict[str, str] | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.headers = headers or {}
        self.status = TABLE[kind] if status is None else status

    def body(self) -> dict[str, str]:
        """TGI's flat error object."""
        return {"error": self.message, "error_type": self.kind}


def invalid(detail: str) -> RequestError:
    """A 422 with TGI's prefix."""
    return RequestError("validation", f"Input validation error: {detail}")


def overloaded(retry_after_s: float = 1.0, detail: str = "Model is overloaded") -> RequestError:
    """A 429 that says when to come back, 1 … 60 s."""
    return RequestError("overloaded", detail, {"retry-after": str(max(1, min(60, round(retry_after_s))))})


class StartError(Exception):
    """Stops a process at start with one clear line; `code` is its exit status.

    2: a setting or a model that is not supported. 3: the model's weights cannot be had. 4: no device. 5: the device is busy.
    6, 7: an artifact of another compiler, of another library. 8: the device's memory is too small.
    """

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


class DeviceLost(Exception):
    """Ends an engine process whose device a restart of the process cannot help; `code` is its exit status."""

    code = 9
