"""What a device error means, by the NRT status in its text (neuron.md §4.7)."""

from __future__ import annotations

import re
from enum import Enum, auto

from common.errors import DeviceLost

STATUS = re.compile(r"\bstatus[=: ]+(\d+)")


class Verdict(Enum):
    RESTART = auto()  # a new process, a new cache: the rows are handed back, the poison rule finds a culprit
    EXIT = auto()  # the device itself is broken: this host takes no more work


MEANINGS = {
    2: ("invalid model or input", Verdict.RESTART),
    4: ("out of device memory", Verdict.RESTART),
    5: ("time-out", Verdict.EXIT),
    6: ("hardware error", Verdict.EXIT),
    7: ("queue full", Verdict.RESTART),
    9: ("not enough cores", Verdict.EXIT),
    10: ("compiled for another runtime", Verdict.EXIT),
    101: ("unrecoverable error", Verdict.EXIT),
    1002: ("bad input", Verdict.RESTART),
    1003: ("not a number", Verdict.RESTART),
    1004: ("execution error", Verdict.EXIT),
    1005: ("core busy", Verdict.RESTART),
    1006: ("out of bounds", Verdict.RESTART),
}
COLLECTIVES = range(1200, 1300)


class DeviceError(RuntimeError):
    """A device call failed; its cache may be damaged, so the process ends and its supervisor starts it again."""


def status_of(text: str) -> int | None:
    """The number after `status=`, if there is one."""
    found = STATUS.search(text)
    return int(found.group(1)) if found else None


def classify(status: int | None) -> tuple[str, Verdict]:
    """Meaning and verdict; an unknown status restarts the process, whose start shows whether the device still works."""
    if status is None:
        return "no status", Verdict.RESTART
    if status in COLLECTIVES:
        return "hardware or collectives error", Verdict.EXIT
    return MEANINGS.get(status, ("unknown status", Verdict.RESTART))


def device_failure(call: str, error: Exception) -> DeviceError | DeviceLost:
    """What to raise for a failed device call: never an error of single requests (issue: the poison rule finds the culprit)."""
    text = " ".join(str(error).split())[:300]
    status = status_of(text)
    meaning, verdict = classify(status)
    kind = DeviceLost if verdict is Verdict.EXIT else DeviceError
    return kind(f"{call} failed, status {status} ({meaning}): {text}")
