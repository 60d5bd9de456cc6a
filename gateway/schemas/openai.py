"""What both OpenAI routes take about sampling and streaming, more leniently than TGI where its clients need it (TGI reference §8)."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.schemas.fields import Kind, Record, boolean, described, float32, int32, misfit, text, texts, uint32, uint64, wrong_type
from gateway.schemas.tgi import GenerateParameters


class StreamOptions(NamedTuple):
    """`include_usage`: one more chunk with the usage of the whole request."""

    include_usage: bool = False


class Sampling(NamedTuple):
    """What a client may set on both routes; None: not given."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    ignore_eos: bool = False
    adapter_id: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    def parameters(self) -> GenerateParameters:
        """As `/generate` has them: greedy only at temperature 0; 1 for a share, 0 and −1 for `top_k` mean off."""
        greedy = self.temperature == 0
        return GenerateParameters(
            do_sample=not greedy,
            temperature=None if greedy else self.temperature,
            top_k=None if self.top_k in (0, -1) else self.top_k,
            top_p=None if self.top_p == 1 else self.top_p,
            typical_p=None if self.typical_p == 1 else self.typical_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=self.logit_bias,
            max_new_tokens=self.max_tokens,
            stop=tuple(filter(None, self.stop)),
            seed=self.seed,
            ignore_eos=self.ignore_eos,
            adapter_id=self.adapter_id,
        )


BIAS = {"type": "number", "minimum": -100, "maximum": 100}


@described(
    anyOf=[{"type": "object", "propertyNames": {"pattern": r"^\d{1,9}$"}, "additionalProperties": BIAS}, {"type": "array", "items": BIAS}]
)
def logit_bias(value: Any, path: str) -> tuple[tuple[int, float], ...]:
    """OpenAI's map from token ids, or TGI's list with one bias for each token; as pairs, without zeros."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        raise wrong_type(value, path, "a map")
    pairs = tuple((_token(key, path), float32(bias, path)) for key, bias in value.items())
    return tuple((token, bias) for token, bias in pairs if bias)


def _token(key: object, path: str) -> int:
    name = str(key)
    if not (name.isascii() and name.isdigit() and len(name) < 10):
        raise misfit(path, "invalid key, expected a token id")
    return int(name)


SAMPLING_KINDS: dict[str, Kind] = {
    "model": text,
    "max_tokens": uint32,
    "temperature": float32,
    "top_p": float32,
    "top_k": int32,
    "min_p": float32,
    "typical_p": float32,
    "repetition_penalty": float32,
    "frequency_penalty": float32,
    "presence_penalty": float32,
    "logit_bias": logit_bias,
    "stop": texts,
    "seed": uint64,
    "n": uint32,
    "ignore_eos": boolean,
    "adapter_id": text,
    "stream": boolean,
    "stream_options": Record(StreamOptions, {"include_usage": boolean}),
}

SAMPLING = Record(Sampling, SAMPLING_KINDS, {"max_tokens": ("max_completion_tokens",)})
