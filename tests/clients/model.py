"""A tiny model with real logits, a byte-level tokenizer and a chat template, for clients that need any model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.gateway.scripted import tokenizer_json
from tests.parity.tiny import tiny_model

LENGTH = 1024
VOCAB_SIZE = 300
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</{{ message.role }}>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_model(folder: Path) -> Path:
    """Fills a folder with checkpoint, tokenizer and template; returns it."""
    model = tiny_model("llama", vocab_size=VOCAB_SIZE, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=1)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": LENGTH})
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder
