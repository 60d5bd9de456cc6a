from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from common.messages import Params
from common.noise import draw
from workers.engines.base import DecodeRow, Step
from workers.race import Race, draws
from workers.sampling import Context, Picked, Sampler, penalises

EVERYTHING = 10**6
"""As `top_n_tokens`: the answer lists every token that survived."""

ROUNDING = 1e-5
"""Single precision may decide for a token this near to the border of top-p or typical-p; such examples say nothing."""

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class OnTheBorder(Exception):
    pass


def sample(logits: object, params: Params, seed: int = 0, pos: int = 0, seen: Sequence[int] = ()) -> Picked:
    values = torch.as_tensor(logits, dtype=torch.float32).unsqueeze(0)
    context = Context(seen[: len(seen) // 2], seen[len(seen) // 2 :]) if penalises(params) else None
    return Sampler(values.shape[-1]).pick(Step(logits=values), [row(params, seed, pos)], [context])[0]


def row(params: Params, seed: int = 0, pos: int = 0) -> DecodeRow:
    return DecodeRow(slot=0, token=0, at=0, params=params, seed=seed, pos=pos)


def reference(logits: Floats, params: Params, seen: Sequence[int]) -> Doubles:
    """TGI reference §3.2 word by word, in double precision and with full sorts: log-probabilities, −inf for filtered tokens."""
    scores = logits.astype(np.float64)
    for token, bias in params.logit_bias:
        scores[token] += bias
    for token, count in Counter(seen).items():
        scores[token] *= params.repetition_penalty if scores[token] < 0 else 1 / params.repetition_penalty
        scores[token] -= params.frequency_penalty * count / len(seen)
    for token in set(seen[len(seen) // 2 :]):
        scores[token] -= params.presence_penalty
    scores /= params.temperature
    if params.top_k:
        scores[scores < np.sort(scores)[-min(params.top_k, len(scores))]] = -np.inf
    if params.top_p < 1:
        order = np.argsort(-scores, kind="stable")
        scores[order[count_until(params.top_p, probabilities(scores)[order]) :]] = -np.inf
    if params.min_p > 0:
        relative = scores - scores.max()
        if np.abs(relative - math.log(params.min_p)).min() < ROUNDING:
            raise OnTheBorder
        scores[relative < math.log(params.min_p)] = -np.inf
    if params.typical_p < 1:
        chances = probabilities(scores)
        surprise = -np.log(chances, where=chances > 0, out=np.full_like(chances, -1e9))
        distance = np.abs(surprise - (chances * surprise).sum())
        order = np.argsort(distance, kind="stable")
        last = order[count_until(params.typical_p, chances[order]) - 1]
        if (np.abs(distance - distance[last])[scores != scores[last]] < ROUNDING).any():
            raise OnTheBorder
        scores[distance > distance[last]] = -np.inf
    with np.errstate(divide="ignore"):
        logprobs: Doubles = np.log(probabilities(scores))
    return logprobs


def probabilities(scores: Doubles) -> Doubles:
    masses = np.exp(scores - scores.max())
    chances: Doubles = masses / masses.sum()
    return chances


def count_until(share: float, chances: Doubles) -> int:
    reached = np.cumsum(chances)
    if np.abs(reached - share).min() < ROUNDING:
        raise OnTheBorder
    return min(int((reached < share).sum()) + 1, len(chances))


def race(logprobs: Doubles, seed: int, pos: int) -> int:
    """argmax p ÷ −log u over the survivors, one token at a time."""
    alive = np.flatnonzero(logprobs > -np.inf)
    return max(map(int, alive), key=lambda token: logprobs[token] - math.log(-math.log1p(-(draw(seed, pos, token) + 0.5) / 2**48)))


@st.composite
def rows_of_logits(draw_from: st.DrawFn) -> Floats:
    """Bells, steps with many equal values, and rows with most tokens masked; short, and wide enough for every fast path."""
    n = draw_from(st.sampled_from([1, 2, 7, 129, 1_000, 12_000]))
    kind = draw_from(st.sampled_from(["bell", "steps", "peaked", "masked"]))
    random = np.random.default_rng(draw_from(st.integers(0, 2**32)))
    logits = random.normal(0, draw_from(st.sampled_from([0.1, 1.0, 4.0])), n)
    if kind == "steps":
        logits = np.round(logits)
    if kind == "peaked":
        logits[: n // 100 + 1] += 12
    if kind == "masked":
        logits[random.random(n) < 0.9] = -np.inf
        logits[0] = 0
    return logits.astype(np.float32)


params_of_requests = st.builds(
    Params,
    do_sample=st.booleans(),
    temperature=st.sampled_from([1.0, 0.3, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 50, 5_000, 10**9]),
    top_p=st.sampled_from([1.0, 0.05, 0.5, 0.93]),
    typical_p=st.sampled_from([1.0, 0.2, 0.95]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 1.5, -2.0]),
    top_n_tokens=st.sampled_from([0, EVERYTHING]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -2.0]),
    logit_bias=st.sampled_from([(), (), ((0, 5.0),), ((0, -100.0),)]),
)


@settings(max_examples=100, deadline=None)
@given(rows_of_logits(), params_of_requests, st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.integers(0, 2**32))
def test_every_combination_follows_tgis_order(logits: Floats, params: Params, seed: int, pos: int, seen_seed: int) -> None:
    seen = np.random.default_rng(seen_seed).integers(0, min(len(logits), 30), 20).tolist()
    try:
        expected = reference(logits, params, seen)
    except OnTheBorder:
        reject()
    picked = sample(logits, params, seed, pos, seen)
    assert picked.token == race(expected, seed, pos) if params.samples else expected[picked.token] == expected.max()
    assert picked.logprob == pytest.approx(expected[picked.token], abs=2e-4)
    if params.top_n_tokens:
        logprobs = np.full(len(logits), -np.inf)
        logprobs[[token for token, _ in picked.top]] = [logprob for _, logprob in picked.top]
        likely = (expected > -80) | (logprobs > -80)
        np.testing.assert_allclose(logprobs[likely], expected[likely], atol=2e-4)
        assert picked.logprob == logprobs[picked.token]
        assert [logprob for _, logprob in picked.top] == sorted((logprob for _, logprob in picked.top), reverse=True)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40_000), st.integers(0, 2**64 - 1), st.integers(0, 2**31))
def test_vector_noise_is_the_reference_bit_for_bit(vocab_size: int, seed: int, pos: int) -> None:
    some = np.unique(np.linspace(0, vocab_size - 1, 50).astype(np.int64))
    expected = [draw(seed, pos, int(token)) for token in some]
    assert draws(some, seed, pos).tolist() == expected
    assert Race(vocab_size).coarse(seed, pos)[some].tolist() == [value >> 32 for value in expected]


def test_greedy_is_argmax_with_the_models_own_logprobs() -> None:
    logits = torch.randn(16, 50_257, generator=torch.Generator().manual_seed(1)) * 3
    picked = Sampler(50_257).pick(Step(logits=logits), [row(Params(top_n_tokens=2))] * 16, [None] * 16)
    expected = torch.log_softmax(logits.double(), -1)
    assert [each.token for each in picked] == logits.argmax(-1).tolist()
    assert [each.logprob for each in picked] == pytest.approx(expected.max(-1).values.tolist(), rel=1e-6)
    assert [[token for token, _ in each.top] for each in picked] == expected.topk(2).indices.tolist()
    assert all(each.logprob == float(np.float32(each.logprob)) for each in picked)


@pytest.mark.parametrize(
    "params", [Params(temperature=0.8), Params(top_k=40), Params(top_p=0.9), Params(typical_p=0.5), Params(True, 1.3, 100, 0.8)], ids=str
)
def test_a_seed_gives_the_same_token_alone_in_any_batch_and_slot(params: Params) -> None:
    """B27: neighbours that are greedy, penalised, broken or without a seed of their own change nothing, to the last bit."""
    generator = torch.Generator().manual_seed(2)
    mine = torch.randn(5_001, generator=generator) * 2
    alone = sample(mine, params, seed=77, pos=9)
    sampler = Sampler(5_001)
    for slot in range(8):
        logits = torch.randn(8, 5_001, generator=generator)
        logits[(slot + 1) % 8, 3] = math.nan
        logits[slot] = mine
        rows = [row(Params(do_sample=bool(n % 2), top_k=n, repetition_penalty=1 + n % 3), seed=n) for n in range(8)]
        rows[slot] = row(params, seed=77, pos=9)
        assert sampler.pick(Step(logits=logits), rows, [Context([1, 2])] * 8)[slot] == alone


@pytest.mark.parametrize(
    "params", [Params(), Params(True), Params(temperature=0.5), Params(top_k=200), Params(top_p=0.7), Params(True, 0.7, 50, 0.9)]
)
def test_the_top_256_give_the_token_of_the_whole_vocabulary(params: Params) -> None:
    logits = torch.randn(60, 4_000, generator=torch.Generator().manual_seed(3)) * 3
    best = logits.topk(256)
    rows = [row(params._replace(top_n_tokens=3), seed=n, pos=n) for n in range(60)]
    sampler = Sampler(4_000)
    whole = sampler.pick(Step(logits=logits), rows, [None] * 60)
    candidates = (best.indices, best.values, logits.logsumexp(-1))
    restricted = sampler.pick(Step(candidates=candidates), rows, [None] * 60)
    inside = [n for n in range(60) if whole[n].token in best.indices[n]]
    assert len(inside) >= 50
    for n in inside:
        assert restricted[n].token == whole[n].token
        assert [token for token, _ in restricted[n].top] == [token for token, _ in whole[n].top]
        if params.temperature == 1.0 or params.top_k:
            assert restricted[n].logprob == pytest.approx(whole[n].logprob, abs=1e-5)


@pytest.mark.parametrize("n_fillers", [0, 3_000], ids=["few tokens", "whole vocabulary"])
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (Params(do_sample=True), [0.4, 0.3, 0.2, 0.1]),
        (Params(temperature=0.5), [0.16 / 0.3, 0.09 / 0.3, 0.04 / 0.3, 0.01 / 0.3]),
        (Params(top_k=2), [4 / 7, 3 / 7, 0, 0]),
        (Params(top_p=0.75), [4 / 9, 3 / 9, 2 / 9, 0]),
    ],
    ids=["as they are", "temperature", "top-k", "top-p"],
)
def test_tokens_are_drawn_as_often_as_they_are_likely(params: Params, expected: list[float], n_fillers: int) -> None:
    """Chi-square over positions of one seed; with 3 degrees of freedom 40 is passed once in 10^8."""
    logits = torch.cat([torch.tensor([0.4, 0.3, 0.2, 0.1]).log(), torch.full((n_fillers,), -60.0)]).expand(50, -1)
    sampler = Sampler(4 + n_fillers)
    counts: Counter[int] = Counter()
    for first in range(0, 4_000, 50):
        rows = [row(params, seed=5, pos=first + n) for n in range(50)]
        counts.update(picked.token for picked in sampler.pick(Step(logits=logits), rows, [None] * 50))
    total = counts.total()
    assert set(counts) == {token for token, p in enumerate(expected) if p}
    assert sum((counts[token] - total * p) ** 2 / (total * p) for token, p in enumerate(expected) if p) < 40


def test_a_flat_vocabulary_is_drawn_evenly() -> None:
    """Ten bins of 512 tokens; with 9 degrees of freedom 60 is passed once in 10^9."""
    logits = torch.zeros(50, 5_120)
    sampler = Sampler(5_120)
    bins: Counter[int] = Counter()
    for first in range(0, 3_000, 50):
        rows = [row(Params(do_sample=True), seed=1, pos=first + n) for n in range(50)]
        bins.update(picked.token // 512 for picked in sampler.pick(Step(logits=logits), rows, [None] * 50))
    assert sum((bins[number] - 300) ** 2 / 300 for number in range(10)) < 60


def test_a_wide_nucleus_lets_no_other_token_win() -> None:
    logits = torch.linspace(0, -1e-3, 12_000).expand(50, -1)
    sampler = Sampler(12_000)
    for first in range(0, 200, 50):
        rows = [row(Params(top_p=0.5), seed=1, pos=first + n) for n in range(50)]
        assert all(picked.token <= 6_000 for picked in sampler.pick(Step(logits=logits), rows, [None] * 50))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_and_inf_are_reported_and_stay_in_their_row(poison: float) -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(4))
    logits[1, 299] = poison
    rows = [row(Params(top_p=0.9), seed=1)] * 3
    picked = Sampler(300).pick(Step(logits=logits), rows, [None] * 3)
    assert [each.bad for each in picked] == [False, True, False]
    assert picked[1].token == -1
    assert picked[0] == sample(logits[0], Params(top_p=0.9), seed=1)


def test_a_row_with_every_token_masked_is_bad() -> None:
    assert sample(torch.full((9,), -math.inf), Params()).bad


def test_masked_tokens_are_never_drawn_or_listed() -> None:
    logits = torch.full((500,), -math.inf)
    logits[[7, 8]] = 0.0
    picked = sample(logits, Params(do_sample=True, top_k=100, top_n_tokens=5), seed=1)
    assert [token for token, _ in picked.top] == [7, 8]
    assert picked.token in (7, 8)


def test_ties_at_the_nth_place_are_all_returned() -> None:
    logits = [0.0, 2.0, 1.0, 2.0, 1.0, 1.0]
    assert [token for token, _ in sample(logits, Params(top_n_tokens=3)).top] == [1, 3, 2, 4, 5]
    assert [token for token, _ in sample(logits, Params(top_n_tokens=1)).top] == [1, 3]
    assert sample(logits, Params()).top == ()


def test_ties_at_top_k_are_kept_and_at_top_p_cut() -> None:
    equal = torch.zeros(8)
    assert len(sample(equal, Params(top_k=2, top_n_tokens=EVERYTHING)).top) == 8
    assert [token for token, _ in sample(equal, Params(top_p=0.5, top_n_tokens=EVERYTHING)).top] == [0, 1, 2, 3]


def test_filtered_tokens_are_not_among_the_top() -> None:
    assert len(sample(torch.arange(10.0), Params(top_k=2, top_n_tokens=5)).top) == 2


def test_frequency_counts_the_prompt_and_is_divided_by_the_length() -> None:
    picked = sample([0.0, 0.0, 0.0], Params(frequency_penalty=2.0, top_n_tokens=3), seen=[0, 0, 0, 1])
    logprobs = dict(picked.top)
    assert logprobs[2] - logprobs[0] == pytest.approx(2.0 * 3 / 4)
    assert logprobs[2] - logprobs[1] == pytest.approx(2.0 * 1 / 4)


def test_repetition_is_applied_once_however_often_a_token_was_seen() -> None:
    params = Params(repetition_penalty=2.0, top_n_tokens=4)
    assert sample([4.0, -4.0, 1.0, -1.0], params, seen=[0, 1]) == sample([4.0, -4.0, 1.0, -1.0], params, seen=[0, 1, 0, 1, 1])
    logprobs = dict(sample([4.0, -4.0, 1.0, -1.0], params, seen=[0, 1]).top)
    assert logprobs[0] - logprobs[1] == pytest.approx(4.0 / 2 + 4.0 * 2)


def test_a_bias_of_a_token_that_does_not_exist_or_is_masked_changes_nothing() -> None:
    logits = [1.0, 0.5, -math.inf]
    assert sample(logits, Params(logit_bias=((7, 100.0), (2, 100.0)))) == sample(logits, Params())
    assert sample(logits, Params(logit_bias=((1, 100.0),))).token == 1


@given(st.lists(st.integers(0, 199), min_size=1), st.lists(st.integers(0, 199), max_size=150))
@settings(max_examples=30, deadline=None)
def test_a_context_grown_token_by_token_equals_one_built_at_once(prompt: list[int], output: list[int]) -> None:
    params = Params(repetition_penalty=1.5, frequency_penalty=1.0)
    grown = Context(prompt)
    for token in output:
        grown.append(token)
    one, other = (np.linspace(-3, 3, 200).astype(np.float32) for _ in range(2))
    grown.penalise(one, params)
    Context(prompt + output).penalise(other, params)
    assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    "params",
    [
        Params(temperature=1e-45),
        Params(temperature=1e-300),
        Params(temperature=1e300),
        Params(top_p=1e-12),
        Params(top_p=1 - 1e-16),
        Params(typical_p=1e-12),
        Params(typical_p=1 - 1e-16),
        Params(repetition_penalty=1e-300),
        Params(repetition_penalty=1e300),
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 10_000])
def test_no_parameter_makes_a_healthy_row_bad(params: Params, n: int) -> None:
    logits = torch.linspace(-20, 20, n)
    logits[0] = 30.0
    picked = sample(logits, params, seed=3, seen=[0])
    assert not picked.bad
    assert 0 <= picked.token < n
    assert math.isfinite(picked.logprob)


def test_a_cold_draw_is_the_most_likely_token() -> None:
    assert sample([1.0, 5.0, 4.9], Params(temperature=1e-45), seed=1) == Picked(1, 0.0)


def test_a_certain_token_has_logprob_0_without_a_sign() -> None:
    assert str(sample([0.0, 200.0], Params()).logprob) == "0.0"


def test_an_engine_that_picks_itself_gives_no_logprobs() -> None:
    assert Sampler(10).pick(Step(tokens=[4, 5]), [row(Params())] * 2, [None, None]) == [Picked(4, 0.0), Picked(5, 0.0)]


def test_the_engines_logits_are_left_alone_and_results_outlive_them() -> None:
    logits = torch.randn(2, 3_000, generator=torch.Generator().manual_seed(6))
    before = logits.clone()
    sampler = Sampler(3_000)
    params = Params(True, 0.5, 20, 0.9, 0.9, 1.2, 0.5, 4)
    first = sampler.pick(Step(logits=logits), [row(params)] * 2, [Context([1]), Context([2])])
    kept = list(first)
    assert torch.equal(logits, before)
    sampler.pick(Step(logits=-logits), [row(params)] * 2, [Context([1]), Context([2])])
    assert first == kept
