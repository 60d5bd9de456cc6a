// npm `openai`: chat, its stream helper, completions, errors, retries (clients.md A8).
const assert = require("node:assert");
const { OpenAI, UnprocessableEntityError, RateLimitError } = require("openai");

const messages = [{ role: "user", content: "What is deep learning? é🧑‍🚀" }];
const same = { model: "x", messages, max_tokens: 16, seed: 3, temperature: 0.9, stop: "END" };

async function main() {
  const client = new OpenAI({ baseURL: process.env.URL + "/v1", apiKey: "-", maxRetries: 0 });
  assert.equal((await client.models.list()).data[0].id, "tiny");
  const whole = await client.chat.completions.create({ ...same, logprobs: true, top_logprobs: 2 });
  const text = whole.choices[0].message.content;
  assert.equal(whole.choices[0].logprobs.content.length, whole.usage.completion_tokens);
  let streamed = "";
  let usage = null;
  for await (const chunk of await client.chat.completions.create({ ...same, stream: true, stream_options: { include_usage: true } })) {
    streamed += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage;
  }
  assert.equal(streamed, text);
  assert.deepEqual(usage, whole.usage);
  const helped = await client.chat.completions.stream(same).finalChatCompletion();
  assert.equal(helped.choices[0].message.content, text);
  const completion = await client.completions.create({ model: "x", prompt: ["ab", "c"], max_tokens: 4, logprobs: 1, echo: true });
  assert.ok(completion.choices[0].text.startsWith("ab"));
  await assert.rejects(client.chat.completions.create({ ...same, temperature: -1 }), UnprocessableEntityError);
  const narrow = new OpenAI({ baseURL: process.env.NARROW_URL + "/v1", apiKey: "-", maxRetries: 0 });
  const running = await narrow.chat.completions.create({ ...same, max_tokens: 900, ignore_eos: true, stream: true });
  await assert.rejects(narrow.chat.completions.create(same), RateLimitError);
  running.controller.abort();
  assert.ok((await narrow.chat.completions.create(same, { maxRetries: 5 })).choices.length);
}

main().catch((error) => { console.error(error); process.exit(1); });
