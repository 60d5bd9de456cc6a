"""What an exported Neuron model says about itself, and whether the settings agree with it (neuron.md §2.4, §4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common.errors import StartError
from workers.model_files import read_json

if TYPE_CHECKING:
    from common.config import Settings

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class Artifact(NamedTuple):
    """The static configuration of one compiled model, from its neuron_config.json; lengths in tokens."""

    batch_size: int
    sequence_length: int
    tp_degree: int
    dtype: str
    max_context_length: int
    continuous_batching: bool = False
    on_device_sampling: bool = False
    max_topk: int = 256
    prefill_chunk_size: int = 0
    target: str = ""
    library: str = ""
    compiler: str = ""

    def __str__(self) -> str:
        return f"batch_size {self.batch_size}, sequence_length {self.sequence_length}, {self.tp_degree} cores, {self.dtype}"


class Wanted(NamedTuple):
    """What the settings ask for; None: nothing."""

    batch_size: int | None = None
    sequence_length: int | None = None
    tp_degree: int | None = None
    dtype: str | None = None

    def matches(self, artifact: Artifact) -> bool:
        """Exactly, never `at least` (TGI #3299)."""
        return all(value is None or value == getattr(artifact, name) for name, value in zip(self._fields, self, strict=True))


SETTING_OF = {
    "batch_size": ("MAX_BATCH_SIZE", "--batch_size"),
    "sequence_length": ("MAX_TOTAL_TOKENS", "--sequence_length"),
    "tp_degree": ("HF_NUM_CORES", "--tensor_parallel_size"),
    "dtype": ("HF_AUTO_CAST_TYPE", "--torch_dtype"),
}
"""Field of an artifact → the setting and the option of `optimum-cli export neuron` that name it."""


def parse(values: Mapping[str, Any]) -> Artifact:
    """From the fields of an `NxDNeuronConfig`, as JSON or as attributes; raises `StartError` when one is missing."""
    try:
        return Artifact(
            batch_size=int(values["batch_size"]),
            sequence_length=int(values["sequence_length"]),
            tp_degree=int(values["tp_degree"]),
            dtype=dtype_name(values.get("torch_dtype", values.get("dtype"))),
            max_context_length=int(values.get("max_context_length") or values["sequence_length"]),
            continuous_batching=bool(values.get("continuous_batching")),
            on_device_sampling=bool(values.get("on_device_sampling")),
            max_topk=int(values.get("max_topk") or 256),
            prefill_chunk_size=int(values.get("prefill_chunk_size") or 0),
            target=str(values.get("target") or ""),
            library=str(values.get("optimum_neuron_version") or ""),
            compiler=str(values.get("neuronxcc_version") or ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StartError(f"neuron_config.json is not that of a text generation model: {error!r}") from None


def read_artifact(folder: Path) -> Artifact | None:
    """The artifact in `folder`; None for a plain checkpoint."""
    values = read_json(folder, "neuron_config.json")
    return parse(values) if values else None


def dtype_name(dtype: object) -> str:
    """`bf16`, `torch.bfloat16` and `bfloat16` are one."""
    name = str(dtype).removeprefix("torch.")
    return DTYPES.get(name, name)


def wanted(settings: Settings) -> Wanted:
    """What the settings ask of an artifact; raises `StartError` when two of them contradict each other."""
    named = {
        key: dtype_name(value)
        for key, value in (("HF_AUTO_CAST_TYPE", settings.hf_auto_cast_type), ("DTYPE", settings.dtype))
        if value not in (None, "auto")
    }
    if len(set(named.values())) > 1:
        raise StartError(f"HF_AUTO_CAST_TYPE={settings.hf_auto_cast_type} and DTYPE={settings.dtype} contradict each other")
    dtype = next(iter(named.values()), None)
    return Wanted(settings.max_batch_size, settings.max_total_tokens, settings.hf_num_cores or settings.num_shard, dtype)


def require_agreement(artifact: Artifact, asked: Wanted, max_input_tokens: int | None = None) -> None:
    """Raises `StartError` naming both values when a setting differs from the artifact, or when it cannot be served."""
    for name, value in zip(asked._fields, asked, strict=True):
        has = getattr(artifact, name)
        if value is not None and value != has:
            setting, option = SETTING_OF[name]
            raise StartError(
                f"{setting}={value}, but the model was compiled with {name} {has}: leave {setting} out, or export it with {option} {value}"
            )
    if max_input_tokens is not None and max_input_tokens >= artifact.sequence_length:
        raise StartError(
            f"MAX_INPUT_TOKENS={max_input_tokens} must be less than the sequence_length {artifact.sequence_length} of the compiled model"
        )
    if artifact.batch_size > 1 and not artifact.continuous_batching:
        raise StartError(
            f"the model was compiled with batch_size {artifact.batch_size} and without continuous_batching: each prefill would "
            "overwrite all rows; export it with --batch_size 1"
        )
