"""Where the text of the OpenAI routes ends (TGI reference §8 row 8).

The written rule: `/generate`, `/generate_stream`, `/` and `/invocations` with `inputs` keep the stop string and what its last token
brought along; `/v1/*` cut before the first stop string. Streams and whole answers of one route show the same text, and a stream
never shows the beginning of a stop string that then is cut.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopCut:
    """Takes texts of tokens, gives what may be shown; special tokens count for the match and are not shown."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._hidden = ""  # one character for each of `_held`: "x" where it is not shown
        self.stopped = False

    def push(self, text: str, special: bool = False) -> str:
        """What can be shown now; all that is held back counts with the newest text."""
        if self.stopped:
            return ""
        if not self._stops:
            return "" if special else text
        self._held += text
        self._hidden += ("x" if special else " ") * len(text)
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._take(min(found))
        return self._take(len(self._held) - self._n_held())

    def end(self) -> str:
        """What was held back, when the text ends without a stop string."""
        return "" if self.stopped else self._take(len(self._held))

    def _n_held(self) -> int:
        """Characters at the end that a stop string may begin with."""
        ends = range(min(len(self._held), self._longest - 1), 0, -1)
        return next((n for n in ends if any(stop.startswith(self._held[-n:]) for stop in self._stops)), 0)

    def _take(self, n: int) -> str:
        shown = "".join(c for c, hidden in zip(self._held[:n], self._hidden, strict=False) if hidden == " ")
        self._held, self._hidden = self._held[n:], self._hidden[n:]
        return shown
