"""PyPI `text-generation` 0.7.0, TGI's own client: whole, streamed, best of two, errors (clients.md A2)."""

import asyncio
import os

from text_generation import AsyncClient, Client
from text_generation.errors import OverloadedError, ValidationError

PROMPT = "What is deep learning?"

client = Client(os.environ["URL"], timeout=30)

answer = client.generate(PROMPT, max_new_tokens=12, decoder_input_details=True, top_n_tokens=2)
assert answer.details.finish_reason in ("length", "eos_token", "stop_sequence")
assert answer.details.generated_tokens == len(answer.details.tokens) == len(answer.details.top_tokens)
assert answer.details.prefill and answer.details.prefill[0].logprob is None

parameters = {"max_new_tokens": 12, "do_sample": True, "seed": 5, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1}
sampled = client.generate(PROMPT, **parameters)
events = list(client.generate_stream(PROMPT, **parameters))
assert [event.token.id for event in events] == [token.id for token in sampled.details.tokens]
assert events[-1].generated_text == sampled.generated_text
assert events[-1].details.generated_tokens == sampled.details.generated_tokens

try:
    client.generate(PROMPT, max_new_tokens=5000)
    raise AssertionError("a request that never fits was taken")
except ValidationError as error:
    assert "`inputs` tokens + `max_new_tokens` must be <= 1024" in str(error)


async def overloaded() -> None:
    narrow = AsyncClient(os.environ["NARROW_URL"], timeout=30)
    running = narrow.generate_stream(PROMPT, max_new_tokens=900)
    await anext(running)
    try:
        await narrow.generate(PROMPT, max_new_tokens=1)
        raise AssertionError("a second request was taken")
    except OverloadedError as error:
        assert "Model is overloaded" in str(error)
    await running.aclose()


asyncio.run(overloaded())
