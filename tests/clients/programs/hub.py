"""`huggingface_hub`, any version: text generation whole and streamed, details, error classes (clients.md A1)."""

import os

from huggingface_hub import InferenceClient
from huggingface_hub.errors import OverloadedError, ValidationError

PROMPT = "What is deep learning? 안녕 🧑‍🚀"

client = InferenceClient(os.environ["URL"])

text = client.text_generation(PROMPT, max_new_tokens=12)
assert text.startswith(PROMPT), text
assert client.text_generation(PROMPT, max_new_tokens=12, return_full_text=False) == text[len(PROMPT) :]

whole = client.text_generation(PROMPT, max_new_tokens=12, details=True, do_sample=True, seed=3, temperature=0.9, top_n_tokens=2)
details = whole.details
assert details.finish_reason in ("length", "eos_token"), details
assert details.generated_tokens == len(details.tokens) == len(details.top_tokens)
assert details.seed == 3
assert all(token.logprob <= 0 for token in details.tokens)

streamed = list(
    client.text_generation(PROMPT, max_new_tokens=12, details=True, do_sample=True, seed=3, temperature=0.9, top_n_tokens=2, stream=True)
)
assert [event.token.id for event in streamed] == [token.id for token in details.tokens]
assert streamed[-1].generated_text == whole.generated_text
assert streamed[-1].details.generated_tokens == details.generated_tokens
assert all(event.generated_text is None for event in streamed[:-1])

pieces = list(client.text_generation(PROMPT, max_new_tokens=12, stream=True))
assert len(pieces) <= 12 and all(isinstance(piece, str) for piece in pieces)

prefill = client.text_generation(PROMPT, max_new_tokens=1, details=True, decoder_input_details=True).details.prefill
assert len(prefill) > 5 and prefill[0].logprob is None

for stream in (False, True):
    try:
        list(client.text_generation(PROMPT, temperature=-1.0, stream=stream))
        raise AssertionError("a temperature below 0 was taken")
    except ValidationError as error:
        assert "`temperature` must be strictly positive" in str(error)

narrow = InferenceClient(os.environ["NARROW_URL"])
running = narrow.text_generation(PROMPT, stream=True)
next(iter(running))
try:
    narrow.text_generation(PROMPT, max_new_tokens=1)
    raise AssertionError("a second request was taken")
except OverloadedError as error:
    assert "Model is overloaded" in str(error)
