// npm `@huggingface/inference`: text and chat, whole and streamed, errors (clients.md A7).
const assert = require("node:assert");
const { InferenceClient } = require("@huggingface/inference");

const messages = [{ role: "user", content: "What is deep learning?" }];

async function main() {
  const client = new InferenceClient("").endpoint(process.env.URL);
  const generated = await client.textGeneration({ inputs: "What is", parameters: { max_new_tokens: 8, do_sample: false } });
  assert.equal(typeof generated.generated_text, "string");
  let n = 0;
  for await (const chunk of client.textGenerationStream({ inputs: "What is", parameters: { max_new_tokens: 8 } })) {
    assert.ok(chunk.choices);
    n += 1;
  }
  assert.ok(n > 0);
  const same = { messages, max_tokens: 16, seed: 3, temperature: 0.9 };
  const whole = await client.chatCompletion(same);
  let streamed = "";
  for await (const chunk of client.chatCompletionStream(same)) streamed += chunk.choices[0].delta.content;
  assert.equal(streamed, whole.choices[0].message.content);
  await assert.rejects(client.chatCompletion({ messages, temperature: -1 }), /422|strictly positive|validation/i);
}

main().catch((error) => { console.error(error); process.exit(1); });
