"""The Neuron engine over the device double: everything of the real one but the library and the chip."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from common.errors import StartError
from common.shapes import Bucket
from workers.double_tokens import HashTokens, ModelTokens
from workers.engines.base import PrefillRow, Progress, Step
from workers.engines.oracle import NOT_A_NUMBER, misbehave
from workers.faults import read_faults
from workers.model_files import eos_ids, n_weights
from workers.neuron.artifact import Artifact, Wanted, parse, read_artifact
from workers.neuron.cores import NO_DEVICE, NO_DEVICE_LINE, Host, usable
from workers.neuron.double import DeviceDouble, Faults, failed
from workers.neuron.engine import StaticEngine
from workers.neuron.library import Model
from workers.neuron.memory import text_config
from workers.plain_model import plain_model

if TYPE_CHECKING:
    from common.config import Settings

LIBRARY, COMPILER = "0.4.5", "2.21.33363.0"
INSTANCE = "trn1"
ROWS, LONGEST = 4, 2048
CACHE = "neuron_cache.json"
"""In a model's folder: the configurations that the double's hub cache holds. Without it, whatever is asked for."""


class DoubleModel:
    """Implements `workers.neuron.library.Model` without the library's own dispatch."""

    def __init__(self, device: DeviceDouble, vocab_size: int) -> None:
        self.artifact = device.artifact
        self.vocab_size = vocab_size
        self.n_layers = device.n_layers
        self.device = device

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, seq_ids: torch.Tensor, sampling_params: torch.Tensor
    ) -> torch.Tensor:
        return self.device(input_ids, position_ids, seq_ids, sampling_params)

    def prefill_chunk(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, seq_ids: torch.Tensor, sampling_params: torch.Tensor
    ) -> torch.Tensor:
        return self.device.chunk(input_ids, position_ids, seq_ids, sampling_params)


class DoubleLibrary:
    """Implements `workers.neuron.library.Library`: a host with `n_cores` of `FARM_DOUBLE`, a compiler that takes no time."""

    def __init__(self, faults: Faults, salt: Callable[[], str] = str) -> None:
        self.faults = faults
        self.env: dict[str, str] = {}
        self._salt = salt

    def versions(self) -> tuple[str, str]:
        return LIBRARY, COMPILER

    def host(self, settings: Settings) -> Host:
        if self.faults.n_cores == 0:
            raise StartError(NO_DEVICE_LINE, NO_DEVICE)
        return Host(INSTANCE, usable(self.faults.n_cores, settings.neuron_rt_visible_cores, settings.neuron_rt_num_cores))

    def use(self, env: Mapping[str, str]) -> None:
        self.env.update(env)

    def cached(self, folder: Path, asked: Wanted) -> list[Artifact]:
        path = folder / CACHE
        if path.is_file():
            return [parse(entry) for entry in json.loads(path.read_text())]
        length = asked.sequence_length or min(int(text_config(folder).get("max_position_embeddings", LONGEST)), LONGEST)
        batch_size = asked.batch_size or ROWS
        return [Artifact(batch_size, length, asked.tp_degree or 1, asked.dtype or "bfloat16", length, batch_size > 1)]

    def load(self, folder: Path) -> Model:
        artifact = read_artifact(folder)
        assert artifact is not None
        return self._model(folder, artifact)

    def export(self, folder: Path, artifact: Artifact, target: Path | None) -> Model:
        return self._model(folder, artifact)

    def _model(self, folder: Path, artifact: Artifact) -> DoubleModel:
        if self.faults.load_status:
            raise failed(self.faults.load_status, "as told")
        torch.set_num_threads(1)  # one-token passes are too small to share, and others need the cores
        if n_weights(folder):
            tokens: ModelTokens | HashTokens = ModelTokens(plain_model(folder))
        else:
            tokens = HashTokens(text_config(folder)["vocab_size"], max(eos_ids(folder)) + 1, self._salt, NOT_A_NUMBER)
        return DoubleModel(DeviceDouble(artifact, tokens, self.faults), tokens.vocab_size)


class NeuronDoubleEngine(StaticEngine):
    """For tests, and for a look on any machine: `make run BACKEND=neuron-double`. Without weights it speaks as the oracle does:
    the oracle's times, salt and special words count here too.
    """

    def __init__(self, settings: Settings, model_path: str, worker: str) -> None:
        faults = read_faults(Faults, settings.double, prefill_ms=settings.oracle_prefill_ms, step_ms=settings.oracle_step_ms)
        self._salted = settings.oracle_salted
        super().__init__(settings, model_path, worker, DoubleLibrary(faults, (lambda: self.worker) if self._salted else str))

    def serve(self, model: Model) -> None:
        super().serve(model)
        assert isinstance(model, DoubleModel)
        self._device = model.device
        self._speaks_as_oracle = isinstance(model.device.next_token, HashTokens)
        if self._salted:
            self.capabilities = self.capabilities._replace(reproducible=False)

    def warm_up(self, progress: Progress) -> None:
        """Takes no time: latencies are those of serving."""
        device = self._device
        device.faults, faults = replace(device.faults, prefill_ms=0.0, step_ms=0.0), device.faults
        super().warm_up(progress)
        device.faults = faults

    def prefill(self, bucket: Bucket, rows: Sequence[PrefillRow]) -> Step:
        if self._speaks_as_oracle:
            misbehave(rows)
        return super().prefill(bucket, rows)
