"""Every key and channel name of the farm (design §5). No other file spells one.

All names of a cell share its hash tag, so a Redis Cluster keeps a cell in one slot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNSAFE = re.compile(r"[{}\s\x00-\x1f]")


@dataclass(frozen=True)
class Cell:
    """One model of one farm: `{farm:name@fingerprint/number}`."""

    farm: str
    name: str
    fingerprint: str
    number: int = 0

    @property
    def tag(self) -> str:
        """The prefix of all names of this cell; scripts append the parts below to it."""
        return f"{{{_safe(self.farm)}:{_safe(self.name)}@{self.fingerprint}/{self.number}}}"

    def lane(self, length: int, priority: int = 1) -> str:
        return self.lane_named(lane_name(length, priority))

    def lane_named(self, name: str) -> str:
        return f"{self.tag}lane:{name}"

    def req(self, rid: bytes) -> str:
        return f"{self.tag}req:{rid.hex()}"

    def res(self, rid: bytes) -> str:
        return f"{self.tag}res:{rid.hex()}"

    def journal(self, worker: str) -> str:
        return f"{self.tag}journal:{worker}"

    def record(self, worker: str) -> str:
        return f"{self.tag}worker:{worker}"

    def mail(self, worker: str) -> str:
        return f"{self.tag}mail:{worker}"

    def events(self, gateway: str) -> str:
        return f"{self.tag}ev:{gateway}"

    @property
    def lanes(self) -> str:
        return f"{self.tag}lanes"

    @property
    def workers(self) -> str:
        return f"{self.tag}workers"

    @property
    def orphans(self) -> str:
        return f"{self.tag}orphans"

    @property
    def cold(self) -> str:
        return f"{self.tag}cold"

    @property
    def gateways(self) -> str:
        return f"{self.tag}gateways"

    @property
    def boot(self) -> str:
        return f"{self.tag}boot"

    @property
    def bell(self) -> str:
        return f"{self.tag}bell"

    @property
    def dead(self) -> str:
        return f"{self.tag}dead"


def lane_name(length: int, priority: int = 1) -> str:
    """The part of a lane's key after `lane:`, as scripts pass it around."""
    return f"L{length}:p{priority}"


def models(farm: str) -> str:
    """Hash: served name → packed (fingerprint, card digest)."""
    return f"{_safe(farm)}:models"


def card(farm: str, digest: str) -> str:
    return f"{_safe(farm)}:card:{digest}"


def job_progress(job_id: str) -> str:
    """In the jobs' database, beside arq's own keys: packed (what, done)."""
    return f"arq:progress:{job_id}"


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)
