"""`openai` for Python: chat, stream, its stream helper, completions, log-probabilities, errors, retries (clients.md A3)."""

import os

from openai import APIStatusError, OpenAI, RateLimitError, UnprocessableEntityError

MESSAGES = [{"role": "user", "content": "What is deep learning? é🧑‍🚀"}]

client = OpenAI(base_url=os.environ["URL"] + "/v1", api_key="-", max_retries=0)

assert [model.id for model in client.models.list()] == ["tiny"]
assert client.models.retrieve("tiny").id == "tiny"

same = {"messages": MESSAGES, "model": "gpt-4", "max_completion_tokens": 16, "seed": 3, "temperature": 0.9, "top_p": 1}
same |= {"user": "u", "parallel_tool_calls": None, "logit_bias": {"256": -100}, "stop": "END", "n": 1}
whole = client.chat.completions.create(**same, logprobs=True, top_logprobs=2)
choice = whole.choices[0]
assert whole.id and whole.model == "gpt-4" and choice.finish_reason in ("length", "stop")
assert len(choice.logprobs.content) == whole.usage.completion_tokens
assert all(len(token.top_logprobs) >= 2 and token.logprob <= 0 for token in choice.logprobs.content)

chunks = list(client.chat.completions.create(**same, stream=True, stream_options={"include_usage": True}))
assert {chunk.id for chunk in chunks} == {chunks[0].id}
assert "".join(chunk.choices[0].delta.content for chunk in chunks[:-1]) == choice.message.content
assert chunks[-2].choices[0].finish_reason == choice.finish_reason
assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage

with client.chat.completions.stream(**same) as stream:
    for _ in stream:
        continue
    final = stream.current_completion_snapshot
assert final.choices[0].message.content == choice.message.content

two = client.chat.completions.create(**{**same, "n": 2}).choices
assert [each.index for each in two] == [0, 1] and two[0].message.content == choice.message.content

calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
trip = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "tool_call_id": "1", "content": "9"}]
assert client.chat.completions.create(model="x", messages=trip, max_tokens=1).choices

text = client.completions.create(model="x", prompt=["ab", "abc"], max_tokens=4, temperature=0, suffix=None, logprobs=1, echo=True)
assert [each.text[:2] for each in text.choices] == ["ab", "ab"]
assert text.choices[0].logprobs.token_logprobs[0] is None
ids = client.completions.create(model="x", prompt=[[5, 6], [7]], max_tokens=4, temperature=0)
assert ids.usage.prompt_tokens == 3 and len(ids.choices) == 2
pieces = ["", ""]
for chunk in client.completions.create(model="x", prompt=[[5, 6], [7]], max_tokens=4, temperature=0, stream=True):
    pieces[chunk.choices[0].index] += chunk.choices[0].text
assert pieces == [each.text for each in ids.choices]

for wrong, error in (({"temperature": -1}, "strictly positive"), ({"max_tokens": 5000}, "must be <= 1024")):
    try:
        client.chat.completions.create(model="x", messages=MESSAGES, **wrong)
        raise AssertionError(wrong)
    except UnprocessableEntityError as refused:
        assert error in str(refused.response.json()["error"])
try:
    client.chat.completions.create(model="x", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}])
    raise AssertionError("tools were taken")
except APIStatusError as refused:
    assert refused.status_code == 422

narrow = OpenAI(base_url=os.environ["NARROW_URL"] + "/v1", api_key="-", max_retries=0)
running = narrow.chat.completions.create(model="x", messages=MESSAGES, stream=True, max_tokens=900, extra_body={"ignore_eos": True})
next(iter(running))
try:
    narrow.chat.completions.create(model="x", messages=MESSAGES, max_tokens=1)
    raise AssertionError("a second request was taken")
except RateLimitError as refused:
    assert int(refused.response.headers["retry-after"]) >= 1
running.close()
assert narrow.with_options(max_retries=5).chat.completions.create(model="x", messages=MESSAGES, max_tokens=1).choices
