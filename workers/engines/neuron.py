"""The Neuron engine, and every call to optimum-neuron there is (0.4.5; neuron.md §2.3). Nothing of it is imported before `load`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from workers.neuron.artifact import Artifact, Wanted, parse, require_agreement
from workers.neuron.cores import Host, detect
from workers.neuron.engine import StaticEngine

if TYPE_CHECKING:
    from common.config import Settings


class OptimumModel:
    """A decoder of optimum-neuron; implements `workers.neuron.library.Model`."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.artifact = parse(vars(model.neuron_config))
        config = model.config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        self.n_layers = int(config.num_hidden_layers)

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, seq_ids: torch.Tensor, sampling_params: torch.Tensor
    ) -> torch.Tensor:
        return self._model.forward(  # type: ignore[no-any-return]
            input_ids=input_ids, position_ids=position_ids, seq_ids=seq_ids, sampling_params=sampling_params
        )

    def prefill_chunk(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, seq_ids: torch.Tensor, sampling_params: torch.Tensor
    ) -> torch.Tensor:
        return self._model.prefill_chunk(  # type: ignore[no-any-return]
            input_ids=input_ids, position_ids=position_ids, seq_ids=seq_ids, sampling_params=sampling_params
        )


class OptimumNeuron:
    """The real library; implements `workers.neuron.library.Library`."""

    def versions(self) -> tuple[str, str]:
        return _installed("optimum-neuron"), _installed("neuronx-cc")

    def host(self, settings: Settings) -> Host:
        return detect(settings.neuron_rt_visible_cores, settings.neuron_rt_num_cores)

    def use(self, env: Mapping[str, str]) -> None:
        os.environ.update(env)

    def cached(self, folder: Path, asked: Wanted) -> list[Artifact]:
        from optimum.neuron.cache.hub_cache import get_hub_cached_entries

        entries = get_hub_cached_entries(str(folder), task="text-generation", cache_repo_id=os.environ.get("CUSTOM_CACHE_REPO"))
        return [parse(entry) for entry in entries]

    def load(self, folder: Path) -> OptimumModel:
        from optimum.neuron import NeuronModelForCausalLM

        return OptimumModel(NeuronModelForCausalLM.from_pretrained(str(folder)))

    def export(self, folder: Path, artifact: Artifact, target: Path | None) -> OptimumModel:
        from optimum.neuron import NeuronModelForCausalLM
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(str(folder)).get_text_config()
        config.dtype = getattr(torch, artifact.dtype)
        neuron_config = NeuronModelForCausalLM.get_neuron_config(
            str(folder),
            config=config,
            instance_type=artifact.target,
            batch_size=artifact.batch_size,
            sequence_length=artifact.sequence_length,
            tensor_parallel_size=artifact.tp_degree,
        )
        neuron_config.on_device_sampling = artifact.on_device_sampling
        neuron_config.max_context_length = artifact.max_context_length
        require_agreement(parse(vars(neuron_config)), Wanted(*artifact[:4]))
        model = NeuronModelForCausalLM.export(str(folder), neuron_config=neuron_config, config=config, load_weights=True)
        if target is not None:
            partial = target.with_name(target.name + ".partial")
            model.save_pretrained(str(partial))
            partial.replace(target)
        return OptimumModel(model)


class NeuronEngine(StaticEngine):
    """An engine on Trainium or Inferentia2."""

    def __init__(self, settings: Settings, model_path: str, worker: str) -> None:
        super().__init__(settings, model_path, worker, OptimumNeuron())


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
