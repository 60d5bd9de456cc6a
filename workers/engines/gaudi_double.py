"""The Gaudi engine over the card's double: everything of the real one but the library and the card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from common.shapes import Bucket
from workers.double_tokens import HashTokens
from workers.engines.base import PrefillRow, Progress, Step
from workers.engines.oracle import NOT_A_NUMBER, misbehave
from workers.faults import read_faults
from workers.gaudi.behaving import Behaving, Calls, Faults
from workers.gaudi.buckets import Plan
from workers.gaudi.cards import Card, nth, usable
from workers.gaudi.double import CardDouble
from workers.gaudi.engine import SharedColumnEngine
from workers.gaudi.hashed import HASHED, HashedDecoder
from workers.gaudi.library import Decoder, Memory, Versions
from workers.model_files import eos_ids, n_weights, read_json
from workers.plain_model import plain_model

if TYPE_CHECKING:
    from common.config import Settings

LIBRARY = "1.21.2"
ROWS, LENGTH = 4, 512
"""When nothing is given: a warm-up that a CPU ends soon."""
BUSY = "synStatus=26 [Generic failure] Device acquire failed."


class DoubleLibrary:
    """Implements `workers.gaudi.library.Library`: one card of a host that has `n_cards`."""

    device = torch.device("cpu")

    def __init__(self, faults: Faults = Faults(), salt: Callable[[], str] = str) -> None:  # noqa: B008
        self.faults = faults
        self.double = CardDouble(faults.memory_mb * 2**20, faults.token_kb * 2**10, compile_s=faults.compile_ms / 1000)
        self.env: dict[str, str] = {}
        self._salt = salt
        self._n_acquired = 0
        self._calls = Calls()

    def versions(self) -> Versions:
        return Versions(LIBRARY, self.faults.stack)

    def card(self, settings: Settings) -> Card:
        cards = tuple(Card(number, number) for number in range(self.faults.n_cards))
        return nth(usable(cards, settings.habana_visible_modules), settings.worker_number, settings.workers)

    def use(self, env: Mapping[str, str]) -> None:
        self.env.update(env)

    def acquire(self) -> str:
        self._n_acquired += 1
        if self._n_acquired <= self.faults.busy:
            raise RuntimeError(BUSY)
        return self.faults.generation

    def load(self, folder: Path, way: str, dtype: torch.dtype) -> Decoder:
        torch.set_num_threads(1)  # one-token passes are too small to share, and others need the cores
        if n_weights(folder):
            from workers.gaudi.stock import StockDecoder  # 1.5 s that a double without weights can do without

            decoder: Any = StockDecoder(plain_model(folder))
        else:
            config = read_json(folder, "config.json")
            tokens = HashTokens(config["vocab_size"], max(eos_ids(folder)) + 1, self._salt, NOT_A_NUMBER)
            decoder = HashedDecoder(tokens, tokens.vocab_size)
        ready: Decoder = self.behind_faults(decoder)
        return ready

    def behind_faults(self, decoder: Any) -> Any:
        """The same decoder, with the card's times and faults."""
        decoder.prefill = Behaving(decoder.prefill, self.double, self.faults, self._calls, self.faults.prefill_ms)
        decoder.decode = Behaving(decoder.decode, self.double, self.faults, self._calls, self.faults.step_ms)
        return decoder

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Calls take no time in it."""
        self._calls.hurried = True
        yield
        self._calls.hurried = False

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.zeros(shape, dtype=dtype)
        self.double.hold(tensor.nbytes)
        return tensor

    def capture(self, module: torch.nn.Module) -> Callable[..., object]:
        return self.double.capture(module)

    def recipe(self) -> AbstractContextManager[None]:
        return self.double.recipe()

    def synchronize(self) -> None:
        return

    def memory(self) -> Memory:
        return Memory(self.double.free_bytes, self.double.total_bytes)

    def n_compilations(self) -> int:
        return self.double.n_compilations


class GaudiDoubleEngine(SharedColumnEngine):
    """For tests, and for a look on any machine: `make run BACKEND=gaudi-double`. Without weights it speaks as the oracle does:
    the oracle's times, salt and special words count here too, the times only while it serves.
    """

    _library: DoubleLibrary

    def __init__(self, settings: Settings, model_path: str, worker: str) -> None:
        faults = read_faults(Faults, settings.double, prefill_ms=settings.oracle_prefill_ms, step_ms=settings.oracle_step_ms)
        self._salted = settings.oracle_salted
        if settings.max_batch_size is None:
            settings = replace(settings, max_batch_size=ROWS)
        if settings.max_total_tokens is None:
            tokens = settings.max_batch_prefill_tokens or LENGTH
            settings = replace(settings, max_total_tokens=LENGTH, max_batch_prefill_tokens=tokens)
        super().__init__(settings, model_path, worker, DoubleLibrary(faults, (lambda: self.worker) if self._salted else str))

    def serve(self, decoder: Decoder, plan: Plan) -> None:
        with self._library.hurried():
            super().serve(decoder, plan)
        self._speaks_as_oracle = self.precision == HASHED
        self.capabilities = self.capabilities._replace(reproducible=self._speaks_as_oracle and not self._salted)

    def warm_up(self, progress: Progress) -> None:
        """Afterwards the card refuses to compile."""
        with self._library.hurried():
            super().warm_up(progress)
        self._library.double.serving = not self.cold

    def prefill(self, bucket: Bucket, rows: Sequence[PrefillRow]) -> Step:
        if self._speaks_as_oracle:
            misbehave(rows)
        return super().prefill(bucket, rows)
