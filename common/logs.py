"""Logs on standard output: a line of text or of JSON per record, without secrets (TGI reference §6.3)."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Protocol

from common.config import Settings
from common.trace import TRACE

LEVELS = {"trace": logging.DEBUG, "debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
OURS = ("common", "gateway", "workers")
"""`LOG_LEVEL` is about these; other libraries speak from a warning on, except at `trace`."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Stream(Protocol):
    """What log lines are written to."""

    def write(self, text: str, /) -> Any: ...
    def flush(self) -> Any: ...


def start_logs(settings: Settings, out: Stream | None = None) -> None:
    """Sets this process' logging up, before the first record; `out` is standard output unless given."""
    handler = logging.StreamHandler(out or sys.stdout)
    handler.setFormatter(JsonFormatter(settings.secrets()) if settings.json_output else TextFormatter(settings.secrets()))
    level = LEVELS[settings.log_level]
    logging.basicConfig(handlers=[handler], level=level if settings.log_level == "trace" else max(level, logging.WARNING), force=True)
    for name in OURS:
        logging.getLogger(name).setLevel(level)


class _Formatter(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__()
        self._secrets = sorted(secrets, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """The text with every secret replaced."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def message(self, record: logging.LogRecord) -> str:
        """What was said, with the traceback if there is one."""
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return self.hide(record.getMessage() + trace)

    def extra(self, record: logging.LogRecord) -> dict[str, Any]:
        """The fields given as `extra=`, and the trace of the request that is being worked on."""
        fields = {**{name: value for name, value in vars(record).items() if name not in _STANDARD}, **TRACE.get()}
        return {name: self.hide(value) if isinstance(value, str) else value for name, value in fields.items()}


class TextFormatter(_Formatter):
    """`time LEVEL logger: message key=value …`."""

    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {name}={value}" for name, value in self.extra(record).items())
        return f"{self.formatTime(record)} {record.levelname:>5} {record.name}: {self.message(record)}{extra}"


class JsonFormatter(_Formatter):
    """TGI's shape: `{"timestamp", "level", "fields": {"message", …}, "target"}`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"message": self.message(record), **self.extra(record)}
        line = {"timestamp": self.formatTime(record), "level": record.levelname, "fields": fields, "target": record.name}
        return json.dumps(line, ensure_ascii=False, default=str)
