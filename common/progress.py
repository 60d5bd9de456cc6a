"""Shows the progress of a start. Runs with any Python from 3.6 on, as the first step of `make run` needs it."""

import time
from typing import TextIO, Tuple


class Progress:
    """What is being done, how far it is and the seconds left: a bar on a terminal, else a line per 10 % or 10 s."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._on_terminal = out.isatty()
        self._what = ""
        self._started_s = 0.0
        self._shown: Tuple[float, float] = (-1.0, 0.0)

    def tell(self, what: str, done: float) -> None:
        """`done` is 0 … 1; a new `what` starts a new estimate."""
        now_s = time.monotonic()
        done = min(max(done, 0.0), 1.0)
        if what != self._what:
            self._what, self._started_s, self._shown = what, now_s, (-1.0, now_s)
        text = f"{what} {int(done * 100)} %{self._left(done, now_s - self._started_s)}"
        shown_done, shown_s = self._shown
        if self._on_terminal:
            self._write(f"\r\033[K[{'#' * int(done * 30):<30}] {text}")
        elif done - shown_done >= 0.1 or now_s - shown_s >= 10 or done == 1 > shown_done:
            self._shown = (done, now_s)
            self._write(text + "\n")

    def line(self, text: str) -> None:
        """A line of its own, in place of the bar."""
        self.write(text + "\n")

    def write(self, text: str) -> None:
        """Makes this a stream that logs can be written to."""
        self._write(("\r\033[K" if self._on_terminal else "") + text)

    def flush(self) -> None:
        """Everything is written at once already."""

    @staticmethod
    def _left(done: float, elapsed_s: float) -> str:
        if elapsed_s < 1 or not 0 < done < 1:
            return ""
        return f", {round(elapsed_s * (1 - done) / done)} s left"

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
