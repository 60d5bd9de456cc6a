"""The CPU engine over a tiny model: slots do not touch each other, shapes are warmed, limits are exact."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from common.config import Settings
from common.errors import StartError
from common.shapes import Bucket, smallest_bucket
from tests.parity.drive import Job, drive, expected, tiny_engine
from tests.parity.tiny import MAX_LENGTH, VOCAB_SIZE, tiny_model
from workers.engines.base import DecodeRow, PrefillRow, UnwarmedShape
from workers.engines.cpu import CpuEngine, decode_columns
from workers.stock_model import DTYPES, choose_dtype, load_stock_model

N_SLOTS = 4


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def engine(model: Any, tmp_path_factory: pytest.TempPathFactory) -> CpuEngine:
    return tiny_engine(model, tmp_path_factory.mktemp("llama"), MAX_BATCH_SIZE=N_SLOTS, ENABLE_PREFILL_LOGPROBS=True)


def prefill(engine: CpuEngine, slot: int, ids: list[int], **row: Any) -> torch.Tensor:
    bucket = smallest_bucket([len(ids)], engine.shape)
    assert bucket is not None
    return engine.prefill(bucket, [PrefillRow(slot, ids, **row)]).logits[0].clone()  # type: ignore[no-any-return]


def trace(engine: CpuEngine, slot: int, ids: list[int], neighbours: dict[int, list[int]], n_steps: int = 12) -> torch.Tensor:
    """All logits of one greedy row beside `neighbours` (slot → prompt), which take odd tokens."""
    for other, other_ids in neighbours.items():
        prefill(engine, other, other_ids)
    rows = [prefill(engine, slot, ids)]
    for step in range(n_steps):
        named = [DecodeRow(other, (step * 7 + other) % VOCAB_SIZE, len(other_ids) + step) for other, other_ids in neighbours.items()]
        step_rows = [*named, DecodeRow(slot, int(rows[-1].argmax()), len(ids) + step)]
        rows.append(engine.decode(step_rows).logits[-1].clone())
    for index in range(engine.shape.batch_size):
        engine.release(index)
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_slots_neighbours_and_kv_lengths_change_no_bit(dtype: str, tmp_path: Path) -> None:
    model = tiny_model("llama", hidden_size=128, intermediate_size=256, num_attention_heads=8)
    model.save_pretrained(tmp_path)
    engine = CpuEngine(Settings.from_env({"MAX_BATCH_SIZE": "4", "MAX_TOTAL_TOKENS": "160"}), str(tmp_path), "tiny")
    engine.serve(load_stock_model(tmp_path, DTYPES[dtype]))
    ids = list(range(2, 40))
    alone = trace(engine, 0, ids, {})
    for slot in range(N_SLOTS):
        others = {other: [3 + other] * (1 + 43 * other) for other in range(N_SLOTS) if other != slot}
        assert torch.equal(trace(engine, slot, ids, {}), alone)
        assert torch.equal(trace(engine, slot, ids, others), alone)


def test_a_row_that_pauses_while_others_decode_keeps_its_cache(engine: CpuEngine, model: Any) -> None:
    paused, other = Job([5, 6, 7], 0, 1, 10), Job([9] * 20, 0, 2, 8)
    prefill(engine, 1, paused.prompt)
    drive(engine, [other])
    continued = [int(prefill(engine, 3, paused.prompt).argmax())]
    for step in range(9):
        continued.append(int(engine.decode([DecodeRow(1, continued[-1], 3 + step)]).logits[0].argmax()))
    engine.release(1)
    engine.release(3)
    assert continued == expected(model, paused)


def test_forced_tokens_through_decode_equal_prefill(engine: CpuEngine) -> None:
    ids = list(range(20, 70))
    whole = prefill(engine, 0, ids)
    prefill(engine, 2, ids[:11])
    replayed = None
    for at, token in enumerate(ids[11:], 11):
        replayed = engine.decode([DecodeRow(2, token, at)]).logits[0].clone()
    assert replayed is not None and torch.allclose(replayed, whole, atol=1e-4)


def test_logits_are_float32_in_the_order_of_the_rows(engine: CpuEngine) -> None:
    prompts = {slot: [10 + slot] * (3 + slot) for slot in range(N_SLOTS)}
    for slot, ids in prompts.items():
        prefill(engine, slot, ids)
    rows = [DecodeRow(slot, 4, len(ids)) for slot, ids in prompts.items()]
    forward, backward = engine.decode(rows).logits.clone(), engine.decode(rows[::-1]).logits
    assert forward.dtype is torch.float32 and forward.shape == (N_SLOTS, VOCAB_SIZE) == (engine.shape.batch_size, engine.vocab_size)
    assert torch.equal(forward, backward.flip(0))


def test_prompt_logprobs_are_those_of_the_plain_model(engine: CpuEngine, model: Any) -> None:
    ids = [random.Random(3).randrange(VOCAB_SIZE) for _ in range(140)]
    step = engine.prefill(Bucket(1, MAX_LENGTH), [PrefillRow(0, ids, prompt_logprobs=True)])
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    wanted = [float(logprobs[pos, token]) for pos, token in enumerate(ids[1:])]
    assert step.prompt_logprobs[0] == pytest.approx(wanted, abs=1e-3)
    best = step.prompt_best[0] or []
    assert [token for token, _ in best] == logprobs[:-1].argmax(-1).tolist()
    assert [logprob for _, logprob in best] == pytest.approx(logprobs[:-1].amax(-1).tolist(), abs=1e-3)
    assert torch.allclose(step.logits[0].log_softmax(-1), logprobs[-1], atol=1e-3)


def test_scrub_heals_a_slot_that_holds_nan(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[100] = float("nan")
    engine = tiny_engine(model, tmp_path)
    clean = trace(engine, 1, [8] * 5, {})
    prefill(engine, 1, [100] * 60)
    assert trace(engine, 1, [8] * 5, {}).isnan().any(), "NaN behind the mask would otherwise be harmless"
    engine.scrub(1)
    assert torch.equal(trace(engine, 1, [8] * 5, {}), clean)


def test_a_random_load_sees_no_unwarmed_shape(engine: CpuEngine) -> None:
    rng = random.Random(7)
    jobs = [
        Job([1 + rng.randrange(100)] * rng.randrange(1, MAX_LENGTH - 20), 21 * (index // N_SLOTS), index % N_SLOTS, 20)
        for index in range(12)
    ]
    drive(engine, jobs)
    assert engine.ledger.serving and engine.ledger.n_unwarmed == 0


def test_a_shape_that_was_not_warmed_is_refused(engine: CpuEngine) -> None:
    with pytest.raises(UnwarmedShape):
        engine.prefill(Bucket(1, 48), [PrefillRow(0, [1])])


def test_lengths_that_are_no_powers_of_two_are_exact(tmp_path: Path) -> None:
    model = tiny_model("llama", max_position_embeddings=1100)
    engine = tiny_engine(model, tmp_path, MAX_TOTAL_TOKENS=1100, MAX_BATCH_SIZE=2)
    jobs = [Job([3 + n % 90] * n, 101 * index, index % 2, min(100, 1100 - n)) for index, n in enumerate((63, 65, 999, 1000, 1099))]
    drive(engine, jobs)
    assert engine.shape.max_length == engine.shape.max_bucket == decode_columns(1100)[-1] == 1100
    assert [job.tokens for job in jobs] == [expected(model, job) for job in jobs]


def test_decode_columns_end_at_the_length_and_grow_by_half_at_most() -> None:
    assert decode_columns(100) == (100,)
    assert decode_columns(512) == (128, 192, 256, 384, 512)
    for length in (160, 1100, 2048, 4096):
        columns = decode_columns(length)
        assert columns[-1] == length and all(b <= 1.5 * a for a, b in pairwise(columns))


def test_default_shape_is_eight_rows_of_at_most_2048_tokens(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    engine = CpuEngine(Settings.from_env({}), str(tmp_path), "tiny")
    engine.serve(load_stock_model(tmp_path, torch.float32))
    assert engine.shape[:2] == (8, MAX_LENGTH)
    assert not engine.capabilities.prompt_logprobs and engine.capabilities.reproducible


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"MAX_TOTAL_TOKENS": "161"}, ("MAX_TOTAL_TOKENS=161", "160 positions")),
        ({"MAX_BATCH_SIZE": "100000000"}, ("not enough memory", "MAX_BATCH_SIZE=100000000", "MAX_TOTAL_TOKENS=160")),
    ],
)
def test_what_cannot_fit_stops_the_start_in_one_line(model: Any, tmp_path: Path, env: dict[str, str], words: tuple[str, ...]) -> None:
    model.save_pretrained(tmp_path)
    engine = CpuEngine(Settings.from_env({"DTYPE": "float32", **env}), str(tmp_path), "tiny")
    with pytest.raises(StartError) as refusal:
        engine.load(lambda _what, _done: None)
    assert refusal.value.code == 2 and "\n" not in str(refusal.value)
    assert all(word in str(refusal.value) for word in words)


def test_weights_that_are_cut_short_stop_the_start_in_one_line(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    engine = CpuEngine(Settings.from_env({"DTYPE": "float32"}), str(tmp_path), "tiny")
    with pytest.raises(StartError, match=r"model\.safetensors is no safetensors file, or cut short"):
        engine.load(lambda _what, _done: None)


def test_all_eos_ids_of_the_generation_config_count(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    engine = CpuEngine(Settings.from_env({"DTYPE": "float32"}), str(tmp_path), "tiny")
    engine.load(lambda _what, _done: None)
    assert engine.eos_ids == {7, 9} and engine.precision == "float32"


def test_dtype_auto_takes_one_of_the_two_it_measures_and_names_are_honoured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert choose_dtype("auto") in (torch.bfloat16, torch.float32)
    assert "256-row linear" in caplog.text
    assert choose_dtype("float16") is torch.float16
