"""One figure with its bar, printed as a row."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """`value` holds the bar when it is at most (or, with `least`, at least) `bar`; no bar: reported only."""

    name: str
    value: float
    bar: float | None = None
    least: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        if self.bar is None:
            return True
        return self.value >= self.bar if self.least else self.value <= self.bar

    def row(self) -> str:
        bar = "" if self.bar is None else f"{'≥' if self.least else '≤'} {self.bar:g}"
        verdict = "" if self.bar is None else ("holds" if self.holds else "MISSED")
        return f"{self.name:<64} {self.value:>10.3f}  {bar:<9} {verdict:<7} {self.note}"
