"""The body of `/generate`, `/generate_stream`, `/` and `/tokenize` (TGI reference §1.1.1, §1.3)."""

from __future__ import annotations

from typing import Any, NamedTuple

from common.messages import Params
from gateway.schemas.fields import Record, anything, boolean, float32, int32, one_of, text, texts, uint32, uint64, usize


class Grammar(NamedTuple):
    """A constraint on the output."""

    type: str
    value: Any


class GenerateParameters(NamedTuple):
    """What a client may set; None: not given."""

    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: int | None = None
    return_full_text: bool | None = None
    stop: tuple[str, ...] = ()
    truncate: int | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: int | None = None
    top_n_tokens: int | None = None
    grammar: Grammar | None = None
    adapter_id: str | None = None
    min_p: float | None = None
    ignore_eos: bool = False
    presence_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    def params(self) -> Params:
        """Logits processing as workers understand it."""
        return Params(
            do_sample=self.do_sample,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k or 0,
            top_p=1.0 if self.top_p is None else self.top_p,
            typical_p=1.0 if self.typical_p is None else self.typical_p,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            frequency_penalty=self.frequency_penalty or 0.0,
            top_n_tokens=self.top_n_tokens or 0,
            min_p=self.min_p or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            logit_bias=self.logit_bias,
            ignore_eos=self.ignore_eos,
        )


class GenerateRequest(NamedTuple):
    """Without `parameters` TGI samples; with any, even `{}`, it is greedy unless asked."""

    inputs: str
    parameters: GenerateParameters = GenerateParameters(do_sample=True)
    stream: bool = False


GRAMMAR = Record(Grammar, {"type": one_of(("json", "json_object", "json_schema", "regex")), "value": anything})

PARAMETERS = Record(
    GenerateParameters,
    {
        "best_of": usize,
        "temperature": float32,
        "repetition_penalty": float32,
        "frequency_penalty": float32,
        "top_k": int32,
        "top_p": float32,
        "typical_p": float32,
        "do_sample": boolean,
        "max_new_tokens": uint32,
        "return_full_text": boolean,
        "stop": texts,
        "truncate": usize,
        "watermark": boolean,
        "details": boolean,
        "decoder_input_details": boolean,
        "seed": uint64,
        "top_n_tokens": uint32,
        "grammar": GRAMMAR,
        "adapter_id": text,
        "min_p": float32,
        "ignore_eos": boolean,
    },
)

GENERATE = Record(GenerateRequest, {"inputs": text, "parameters": PARAMETERS, "stream": boolean})
