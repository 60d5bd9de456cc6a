"""The library still misbehaves in these ways (neuron.md §2.6). A test that fails here says: upstream fixed it, relax our rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from common.messages import Params
from tests.neuron.contract.real import LENGTH, ROWS, real_engine, real_model, reference
from tests.parity.tiny import VOCAB_SIZE
from workers.engines.base import PrefillRow
from workers.neuron.double import DeviceDouble, SlotClobbered
from workers.neuron.graphs import ShapeNotCompiled
from workers.sampling import Sampler

pytestmark = [pytest.mark.contract_neuron, pytest.mark.filterwarnings("default")]

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def tiny() -> Any:
    return reference("llama")


@pytest.fixture
def pair(tiny: Any) -> tuple[Any, DeviceDouble]:
    """A model with two rows in use: slots 0 and 2."""
    model, device = real_model(tiny)
    prefill(model, [PROMPT, [8, 9, 10, 11]], [0, 2])
    device.occupied = {0: 3, 2: 4}
    return model, device


def ints(values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def greedy(rows: int) -> torch.Tensor:
    return torch.ones(rows, 3)


def prefill(model: Any, prompts: list[list[int]], slots: list[int]) -> torch.Tensor:
    """As a caller would who trusts the library to pad."""
    longest = max(map(len, prompts))
    ids = [prompt + [0] * (longest - len(prompt)) for prompt in prompts]
    positions = [list(range(len(prompt))) + [0] * (longest - len(prompt)) for prompt in prompts]
    return model.forward(ints(ids), ints(positions), ints(slots), greedy(len(prompts)))  # type: ignore[no-any-return]


def decode(model: Any, tokens: list[int], positions: list[int], slots: list[int]) -> torch.Tensor:
    return model.forward(ints(tokens)[:, None], ints(positions)[:, None], ints(slots), greedy(len(slots)))  # type: ignore[no-any-return]


def test_h1_a_decode_of_some_rows_overwrites_the_others(pair: tuple[Any, DeviceDouble]) -> None:
    model, _ = pair
    with pytest.raises(SlotClobbered, match="slot 2"):
        decode(model, [12], [3], [0])


def test_h2_a_prompt_of_one_token_overwrites_position_0_of_the_others(pair: tuple[Any, DeviceDouble]) -> None:
    model, _ = pair
    with pytest.raises(SlotClobbered, match="position 0"):
        prefill(model, [[40]], [1])


def test_h3_a_prompt_of_one_token_among_longer_ones_gives_a_wrong_token(tiny: Any) -> None:
    model, device = real_model(tiny)
    ids, positions = ints([[40, 0, 0], PROMPT]), ints([[0, 1, 1], [0, 1, 2]])  # the library's own padding has position 1
    output = model.forward(ids, positions, ints([1, 0]), greedy(2))
    assert int(output[0, 0].argmax()) == int(device.next_token(1, (40, 0)).argmax()) != int(device.next_token(1, (40,)).argmax())


def test_h4_a_prompt_that_is_too_long_loses_its_newest_tokens(tiny: Any) -> None:
    model, device = real_model(tiny)
    prefill(model, [list(range(2, 2 + LENGTH + 5))], [0])
    assert device.memory[0] == list(range(2, 2 + LENGTH))


def test_h5_a_slot_named_twice_is_not_refused_in_prefill(tiny: Any) -> None:
    model, device = real_model(tiny)
    prefill(model, [PROMPT, [8, 9, 10]], [1, 1])
    assert device.memory[1][:3] == [8, 9, 10]


@pytest.mark.parametrize("h6_slot", [ROWS, ROWS + 3])
def test_h6_slots_are_not_checked_before_the_device(tiny: Any, h6_slot: int) -> None:
    model, _ = real_model(tiny)
    with pytest.raises(RuntimeError, match="status=1006"):
        prefill(model, [PROMPT], [h6_slot])


def test_h7_positions_are_not_checked_before_the_device(pair: tuple[Any, DeviceDouble]) -> None:
    model, _ = pair
    with pytest.raises(RuntimeError, match="status=1006"):
        decode(model, [1] * ROWS, [LENGTH] * ROWS, list(range(ROWS)))


def test_h8_sampling_parameters_are_not_converted(tiny: Any) -> None:
    model, _ = real_model(tiny)
    with pytest.raises(ShapeNotCompiled):
        model.forward(ints([PROMPT]), ints([[0, 1, 2]]), ints([0]), torch.ones(1, 3, dtype=torch.int64))
    sampled, _ = real_model(tiny, on_device_sampling=True)
    with pytest.raises(AttributeError):
        sampled.forward(ints([PROMPT]), ints([[0, 1, 2]]), ints([0]), None)


def test_h9_a_top_k_of_minus_1_reaches_the_device(tiny: Any) -> None:
    model, _ = real_model(tiny, on_device_sampling=True)
    with pytest.raises(RuntimeError, match="status=1002"):
        model.forward(ints([PROMPT]), ints([[0, 1, 2]]), ints([0]), torch.tensor([[-1.0, 1.0, 1.0]]))


@pytest.mark.parametrize(
    "h10_row", [(0.0, 1.0, 1.0), (257.0, 1.0, 1.0), (2.5, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.1, 1.0), (1.0, 1.0, 0.0)]
)
def test_h10_one_row_out_of_range_fails_the_whole_batch(tiny: Any, h10_row: tuple[float, float, float]) -> None:
    model, _ = real_model(tiny, on_device_sampling=True)
    sampling = greedy(ROWS)
    sampling[2] = torch.tensor(h10_row)
    with pytest.raises(ValueError, match="Invalid"):
        model.forward(ints([[1]] * ROWS), ints([[0]] * ROWS), ints(list(range(ROWS))), sampling)


def test_h11_slots_must_be_named(tiny: Any) -> None:
    model, _ = real_model(tiny)
    with pytest.raises(AttributeError):
        model.forward(ints([PROMPT]), ints([[0, 1, 2]]), None, greedy(1))


def test_h12_a_prompt_cannot_be_continued(pair: tuple[Any, DeviceDouble]) -> None:
    model, _ = pair
    with pytest.raises(ShapeNotCompiled):
        model.forward(ints([PROMPT]), ints([[3, 4, 5]]), ints([0]), greedy(1))


def test_h13_more_rows_than_the_batch_are_refused_as_a_whole(tiny: Any) -> None:
    model, _ = real_model(tiny)
    with pytest.raises(ValueError, match="exceeds the maximum batch size"):
        decode(model, [1] * (ROWS + 1), [0] * (ROWS + 1), list(range(ROWS + 1)))


def test_h14_without_continuous_batching_a_prefill_rewrites_all_rows(tiny: Any) -> None:
    model, device = real_model(tiny, continuous_batching=False)
    with pytest.raises(ShapeNotCompiled):  # the double knows only artifacts that we serve: one row per prefill
        prefill(model, [PROMPT], [1])
    assert model.context_encoding_model.neuron_config.batch_size == ROWS
    assert device.calls == []


H15_PARAMETERS = {
    "a top_k of the whole vocabulary": (Params(do_sample=True, top_k=VOCAB_SIZE), TypeError),
    "sampling without a top_k or top_p": (Params(do_sample=True), ValueError),
}


@pytest.mark.parametrize("name", H15_PARAMETERS)
def test_h15_the_librarys_token_selector_fails_on_what_users_ask_for(tiny: Any, name: str) -> None:
    from optimum.neuron.generation import TokenSelector

    params, error = H15_PARAMETERS[name]
    model, _ = real_model(tiny)
    config = GenerationConfig(do_sample=True, top_k=params.top_k, top_p=1.0, max_length=LENGTH, eos_token_id=1, pad_token_id=0)
    with pytest.raises(error):
        TokenSelector.create(ints([PROMPT]), config, model, LENGTH).select(ints([PROMPT]), torch.zeros(1, VOCAB_SIZE))


@pytest.mark.parametrize("name", H15_PARAMETERS)
def test_h15_our_engine_and_sampler_need_nothing_of_it(tiny: Any, name: str) -> None:
    params, _ = H15_PARAMETERS[name]
    engine, _ = real_engine(tiny)
    row = PrefillRow(0, PROMPT, params=params, seed=7)
    (picked,) = Sampler(VOCAB_SIZE).pick(engine.prefill(engine.shape.buckets[0], [row]), [row], [None])
    assert not picked.bad and 0 <= picked.token < VOCAB_SIZE
