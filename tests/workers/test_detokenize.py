from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from workers.detokenize import Detokenizer, IdText, StopStrings, special_ids

REPLACEMENT = "\ufffd"
END = "<｜end▁of▁text｜>"
PIECES = ["▁", "▁The", "▁capital", "▁of", "▁France", "▁is", "▁Paris", ".", "▁a", "a", "b", "▁▁"]


def byte_level() -> Tokenizer:
    """As GPT-2's and Qwen's: a character is up to four tokens; some merges cross characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "ì"), ("t", "h"), ("Ġ", "Ġ"), ("ķ", "Ī")]
    vocab = {piece: index for index, piece in enumerate([*alphabet, *map("".join, merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2's: pieces with `▁` for a space, bytes for what no piece covers, one leading space stripped."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    vocab = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(content=" ", left=1, right=0)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def metaspace() -> Tokenizer:
    """As T5's and XLNet's: Unigram pieces and a Metaspace decoder."""
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((piece, -float(n)) for n, piece in enumerate(PIECES, 1))], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


BYTE_LEVEL, BYTE_FALLBACK, METASPACE = byte_level(), byte_fallback(), metaspace()


def stream(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, special_ids(tokenizer), prompt)
    return [detokenizer.push(token) for token in tokens]


def full_text(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    return tokenizer.decode([*prompt, *tokens])[len(tokenizer.decode(list(prompt))) :]


def bytes_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token per UTF-8 byte."""
    if tokenizer is BYTE_FALLBACK:
        return ids(tokenizer, *(f"<0x{byte:02X}>" for byte in text.encode()))
    unmerged = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return ids(tokenizer, *(piece for word, _ in unmerged for piece in word))


def ids(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    tokens = map(tokenizer.token_to_id, pieces)
    return [token for token in tokens if token is not None]


both = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte-level", "byte-fallback"])
texts = st.text(st.characters(codec="utf-8", exclude_characters=REPLACEMENT), max_size=12)


@both
def test_b01_a_character_of_several_tokens_appears_whole_with_the_last(tokenizer: Tokenizer) -> None:
    pieces = stream(tokenizer, bytes_of(tokenizer, "say: "), bytes_of(tokenizer, "안녕 🧑‍🚀 ok"))
    assert pieces == [
        *("", "", "안", "", "", "녕", " "),
        *("", "", "", "🧑", "", "", "\u200d", "", "", "", "🚀"),
        *(" ", "o", "k"),
    ]


@both
@given(prompt=texts, text=texts, n_cut=st.integers(0, 3))
@settings(deadline=None)
def test_any_text_streams_without_replacement_characters_and_joins_back(tokenizer: Tokenizer, prompt: str, text: str, n_cut: int) -> None:
    before, after = bytes_of(tokenizer, prompt), bytes_of(tokenizer, text)
    kept = text.encode()[: len(after) - n_cut]
    pieces = stream(tokenizer, before, after[: len(kept)])
    assert not any(REPLACEMENT in piece for piece in pieces)
    whole = kept.decode(errors="ignore")
    if tokenizer is BYTE_FALLBACK and not prompt.strip(" "):
        assert "".join(pieces).lstrip(" ") == whole.lstrip(" ")  # its decoder takes one space off the start of everything
    else:
        assert "".join(pieces) == whole


@given(prompt=texts, text=texts)
@example(prompt="x", text=" 안  ith")
@settings(deadline=None)
def test_merged_tokens_join_back_as_well(prompt: str, text: str) -> None:
    before, after = BYTE_LEVEL.encode(prompt).ids, BYTE_LEVEL.encode(text).ids
    pieces = stream(BYTE_LEVEL, before, after)
    assert "".join(pieces) == text
    assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("tokenizer", [BYTE_FALLBACK, METASPACE], ids=["byte-fallback", "metaspace"])
@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        (["▁Paris", "."], [" Paris", "."]),
        (["▁", "a", "▁Paris"], [" ", "a", " Paris"]),
        (["▁▁", "▁Paris"], ["  ", " Paris"]),
        (["▁", "▁", "▁", "b"], [" ", " ", " ", "b"]),
    ],
)
def test_b03_no_leading_space_is_lost(tokenizer: Tokenizer, pieces: list[str], texts: list[str]) -> None:
    prompt = ids(tokenizer, "▁The", "▁capital", "▁of", "▁France", "▁is")
    tokens = ids(tokenizer, *pieces)
    assert stream(tokenizer, prompt, tokens) == texts
    assert "".join(texts) == full_text(tokenizer, prompt, tokens)


def test_b03_two_spaces_that_a_byte_level_model_wrote_stay_two() -> None:
    assert stream(BYTE_LEVEL, BYTE_LEVEL.encode("x:").ids, BYTE_LEVEL.encode("  ok").ids) == ["  ", "o", "k"]


@pytest.mark.parametrize("n_prompt", [0, 1, 3, 4, 5, 6, 40])
def test_prompts_of_every_length_give_context(n_prompt: int) -> None:
    prompt = ids(BYTE_FALLBACK, *["▁a"] * n_prompt)
    tokens = ids(BYTE_FALLBACK, "▁Paris", "▁is", "a")
    assert "".join(stream(BYTE_FALLBACK, prompt, tokens)) == full_text(BYTE_FALLBACK, prompt, tokens)


@both
@pytest.mark.parametrize("prompt", ["🚀🚀", "é안🚀안é", "안녕하세요", "x🚀ab"])
def test_a_context_that_would_start_inside_a_character_is_widened(tokenizer: Tokenizer, prompt: str) -> None:
    """A byte-fallback decoder turns a whole run of bytes into replacement characters when its first is cut off."""
    pieces = stream(tokenizer, bytes_of(tokenizer, prompt), bytes_of(tokenizer, "녕🚀"))
    assert pieces == ["", "", "녕", "", "", "", "🚀"]


def test_a_special_tokens_text_is_its_own_content_and_cuts_characters() -> None:
    (end,) = ids(BYTE_LEVEL, END)
    tokens = [*bytes_of(BYTE_LEVEL, "안")[:2], end, *bytes_of(BYTE_LEVEL, "녕"), end]
    assert stream(BYTE_LEVEL, [], tokens) == ["", "", END, "", "", "녕", END]
    detokenizer = Detokenizer(BYTE_LEVEL, special_ids(BYTE_LEVEL), [])
    assert detokenizer.is_special(end)
    assert not detokenizer.is_special(tokens[0])


def test_a_leading_space_after_a_special_token_stays() -> None:
    tokens = ids(BYTE_FALLBACK, "▁a", "</s>", "▁Paris")
    assert stream(BYTE_FALLBACK, ids(BYTE_FALLBACK, "<s>", "▁The"), tokens) == [" a", "</s>", " Paris"]


def test_replacement_characters_that_the_model_wrote_are_text() -> None:
    text = f"a{REPLACEMENT}b"
    assert "".join(stream(BYTE_LEVEL, [], bytes_of(BYTE_LEVEL, text))) == text


def test_broken_bytes_hold_up_no_later_text() -> None:
    broken = bytes_of(BYTE_LEVEL, "안")[:1]
    assert stream(BYTE_LEVEL, [], [*broken, *bytes_of(BYTE_LEVEL, "ok")]) == ["", f"{REPLACEMENT}o", "k"]
    pieces = stream(BYTE_LEVEL, [], [*broken * 100, *bytes_of(BYTE_LEVEL, "ok")])
    assert "".join(pieces) == REPLACEMENT * 100 + "ok"
    assert any(pieces[:16]), "text must not wait for ever, or each token costs more than the one before"


@both
@given(text=texts.filter(bool), more=texts)
@settings(deadline=None, max_examples=40)
def test_a_replayed_detokenizer_goes_on_as_the_first_would(tokenizer: Tokenizer, text: str, more: str) -> None:
    shown, rest = bytes_of(tokenizer, text)[:-1], [*bytes_of(tokenizer, text)[-1:], *bytes_of(tokenizer, more)]
    prompt = bytes_of(tokenizer, "prompt ")
    taker = Detokenizer(tokenizer, special_ids(tokenizer), prompt)
    taker.replay(shown)
    assert [taker.push(token) for token in rest] == stream(tokenizer, prompt, [*shown, *rest])[len(shown) :]


@pytest.mark.parametrize(
    ("stop", "pieces", "n_read"),
    [
        (["Pari"], ["The", " capital", " is", " Paris", "."], 4),
        (["it am"], ["Lorem", " dolor", " sit", " amet", ","], 4),
        (["7"], ["1 ", "2 ", "7", " 8"], 3),
        (["b", "aaaaaaaa"], ["a", "a", "", "ab", "c"], 4),
        (["안녕"], ["안", "", "", "녕하"], 4),
        (["</s>"], ["a", "</s>"], 2),
        (["c"], ["abcd"], 1),
        (["x"], ["a", "b"], None),
        ([], ["a", "b"], None),
    ],
)
def test_b04_a_stop_string_is_found_wherever_it_ends(stop: list[str], pieces: list[str], n_read: int | None) -> None:
    stops = StopStrings(stop)
    found = [n for n, piece in enumerate(pieces, 1) if stops.push(piece)]
    assert (found[0] if found else None) == n_read


@given(st.lists(st.text("ab", max_size=4)), st.lists(st.text("ab", min_size=1, max_size=6), max_size=4))
def test_stop_strings_equal_a_search_in_all_text(pieces: list[str], stop: list[str]) -> None:
    stops = StopStrings(stop)
    for n, piece in enumerate(pieces, 1):
        expected = any(each in "".join(pieces[:n]) for each in stop)
        assert stops.push(piece) == expected
        if expected:
            break


def test_special_ids_are_flagged_tokens_and_those_with_a_role() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens(["<think>", AddedToken("<user>"), "<tool>", "<odd>"])
    end, think, user, tool, odd = ids(tokenizer, END, "<think>", "<user>", "<tool>", "<odd>")
    assert special_ids(tokenizer) == {end}
    config = {
        "eos_token": {"content": "<user>"},
        "bos_token": None,
        "unk_token": "not in the vocabulary",
        "additional_special_tokens": ["<tool>"],
        "added_tokens_decoder": {str(odd): {"content": "<odd>", "special": True}, str(think): {"content": "<think>", "special": False}},
    }
    assert special_ids(tokenizer, config) == {end, user, tool, odd}
    assert special_ids(tokenizer, {"extra_special_tokens": {"image_token": "<tool>"}}) == {end, tool}


def test_ids_as_text_go_on_where_another_worker_stopped() -> None:
    first, taker = IdText(), IdText()
    pieces = [first.push(token) for token in (7, 0, 7)]
    assert pieces == ["7", ",0", ",7"]
    taker.replay([7, 0])
    assert taker.push(7) == pieces[2] and not taker.is_special(0)
