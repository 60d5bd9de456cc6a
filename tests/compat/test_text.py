"""Text of characters that take several tokens, through the worker's detokenizer (TGI reference §3.8; cases B01)."""

from __future__ import annotations

from tokenizers import Tokenizer

from tests.gateway.scripted import tokenizer_json
from workers.detokenize import Detokenizer

TEXT = "안녕 🧑‍🚀 ok"


def pieces(ids: list[int]) -> list[str]:
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    detokenizer = Detokenizer(tokenizer, frozenset({0, 1}), tokenizer.encode("what is ").ids)
    return [detokenizer.push(token) for token in ids]


def ids_of(text: str) -> list[int]:
    ids: list[int] = Tokenizer.from_str(tokenizer_json().decode()).encode(text, add_special_tokens=False).ids
    return ids


def test_characters_appear_whole_after_empty_texts() -> None:
    shown = pieces(ids_of(TEXT))
    assert "".join(shown) == TEXT
    assert "" in shown
    assert not any("\ufffd" in piece for piece in shown)


def test_a_text_cut_inside_a_character_loses_only_that_character() -> None:
    cut = ids_of("ok 안")[:-1]
    assert "".join(pieces(cut)) == "ok "
