from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import Tokenizer, processors

from common.messages import Card
from gateway.per_model import PerModel
from gateway.tokenizing import INLINE_CHARACTERS, Encoder
from tests.gateway.scripted import tokenizer_json

pytestmark = pytest.mark.anyio
BOS = 0


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def encoder(threads: ThreadPoolExecutor) -> Encoder:
    return Encoder(tokenizer_json(), threads)


def bare(text: str) -> list[int]:
    ids: list[int] = Tokenizer.from_str(tokenizer_json().decode()).encode(text).ids
    return ids


@pytest.mark.parametrize("text", ["a", "what is deep learning", "héllo 🧑‍🚀", " \n", "x" * (INLINE_CHARACTERS + 1)])
async def test_ids_are_those_of_the_library(encoder: Encoder, text: str) -> None:
    assert await encoder.encode(text) == bare(text)


@pytest.mark.parametrize("n", [1, 2, 5, 21, 22, 23, 100])
async def test_truncation_keeps_the_end_and_the_bos_inside_n_tokens(encoder: Encoder, n: int) -> None:
    """As the library does it with truncation on the left."""
    library = Tokenizer.from_str(tokenizer_json().decode())
    library.enable_truncation(n, direction="left")
    text = "x y z " * 7
    ids = await encoder.encode(text, truncate=n)
    assert ids == library.encode(text).ids
    assert ids[0] == BOS
    assert len(ids) == min(n, len(bare(text)))


async def test_truncation_with_tokens_on_both_sides_and_on_none(threads: ThreadPoolExecutor) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    both = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer.post_processor = both  # type: ignore[assignment]
    around = await Encoder(tokenizer.to_str().encode(), threads).encode("abc", truncate=4)
    assert (around[0], around[-1], len(around)) == (0, 1, 4)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])  # type: ignore[assignment]
    assert len(await Encoder(tokenizer.to_str().encode(), threads).encode("abc", truncate=2)) == 2


async def test_a_stored_truncation_or_padding_is_not_used(threads: ThreadPoolExecutor) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    assert await Encoder(tokenizer.to_str().encode(), threads).encode("x y z x y z") == bare("x y z x y z")


async def test_spans_are_bytes_of_the_text(encoder: Encoder) -> None:
    text = "aé🧑x"
    spans = await encoder.spans(text)
    assert spans[0] == (BOS, "", 0, 0)
    assert [(span.start, span.stop) for span in spans if span.text in ("a", "x")] == [(0, 1), (7, 8)]
    for span in spans:
        assert text.encode()[span.start : span.stop].decode("utf-8", "replace") == span.text
    assert {span.text for span in spans} == {"", "a", "é", "🧑", "x"}


async def test_long_and_short_texts_at_once_do_not_disturb_each_other(encoder: Encoder) -> None:
    texts = [("what is deep learning é " * n)[: 900 * n] for n in range(1, 40)]
    together = await asyncio.gather(*(encoder.encode(text, truncate=50) for text in texts), *(encoder.spans(text) for text in texts))
    assert [await encoder.encode(text, truncate=50) for text in texts] == together[: len(texts)]


async def test_many_threads_share_one_tokenizer(encoder: Encoder) -> None:
    texts = ["what is deep learning é " * n for n in range(1, 17)]

    def encode(text: str) -> list[int]:
        return [token for _ in range(20) for token in asyncio.run(encoder.encode(text, special_tokens=False))]

    with ThreadPoolExecutor(16) as pool:
        answers = await asyncio.gather(*(asyncio.get_running_loop().run_in_executor(pool, encode, text) for text in texts))
    plain = Tokenizer.from_str(tokenizer_json().decode())
    assert answers == [plain.encode(text, add_special_tokens=False).ids * 20 for text in texts]


async def test_an_encoder_is_made_once_for_a_card_and_old_ones_go(threads: ThreadPoolExecutor) -> None:
    encoders = PerModel(lambda card: Encoder(card.files["tokenizer.json"], threads), threads)
    card = Card(1, "m", "fp0", {"tokenizer.json": tokenizer_json()}, {})
    first, again = await asyncio.gather(encoders.of(card), encoders.of(card))
    assert first is again
    for number in range(1, 5):
        await encoders.of(card._replace(fingerprint=f"fp{number}"))
    assert await encoders.of(card) is not first


def test_special_ids_are_known(encoder: Encoder) -> None:
    assert encoder.special_ids == {0, 1}
