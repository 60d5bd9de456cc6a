"""`huggingface_hub`, any version: chat whole and streamed, errors (clients.md A1)."""

import os

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

MESSAGES = [{"role": "user", "content": "What is deep learning?"}]

for url in (os.environ["URL"], os.environ["URL"] + "/v1"):
    client = InferenceClient(base_url=url)
    same = {"messages": MESSAGES, "max_tokens": 16, "seed": 3, "temperature": 0.9}
    whole = client.chat_completion(**same, logprobs=True, top_logprobs=2)
    choice = whole.choices[0]
    assert choice.finish_reason in ("length", "stop") and whole.model
    assert len(choice.logprobs.content) == whole.usage.completion_tokens
    chunks = list(client.chat_completion(**same, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content for chunk in chunks if chunk.choices) == choice.message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    for stream in (False, True):
        try:
            list(client.chat_completion(MESSAGES, temperature=-1.0, stream=stream))
            raise AssertionError("a temperature below 0 was taken")
        except HfHubHTTPError as error:
            assert error.response.status_code == 422
