from __future__ import annotations

from typing import Any

import pytest

from common.errors import RequestError
from gateway import admission
from gateway.admission import Limits, Permits
from gateway.schemas.tgi import GenerateParameters, Grammar

LIMITS = Limits(2, 4, 5, 100, 128)

# In TGI's order: each breaks one rule, and the first of any two wins.
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0.0}, "`temperature` must be strictly positive"),
    ({"repetition_penalty": 0.0}, "`repetition_penalty` must be strictly positive"),
    ({"frequency_penalty": 2.1}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    ({"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
    ({"typical_p": 0.0}, "`typical_p` must be > 0.0 and < 1.0"),
    ({"top_k": 0}, "`top_k` must be strictly positive"),
    ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
    ({"stop": ("a",) * 5}, "`stop` supports up to 4 stop sequences. Given: 5"),
    ({"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
    ({"watermark": True}, "`watermark` is not supported yet"),
    ({"adapter_id": "a"}, "`adapter_id` is not supported yet"),
]


def refusal(inputs: str = "x", **given: Any) -> str:
    with pytest.raises(RequestError) as caught:
        admission.check_request(inputs, GenerateParameters(**given), LIMITS)
    assert (caught.value.status, caught.value.kind) == (422, "validation")
    return caught.value.message.removeprefix("Input validation error: ")


@pytest.mark.parametrize(("given", "message"), BROKEN)
def test_each_rule_has_its_message(given: dict[str, Any], message: str) -> None:
    assert refusal(**given) == message


@pytest.mark.parametrize("first", range(len(BROKEN)))
def test_the_first_broken_rule_wins(first: int) -> None:
    everything: dict[str, Any] = {}
    for given, _ in BROKEN[first:]:
        everything |= given
    assert refusal("", **everything) == BROKEN[first][1]


def test_inputs_and_truncate_come_after_the_parameters() -> None:
    assert refusal("", truncate=0) == "`inputs` cannot be empty"
    assert refusal(truncate=0) == "`truncate` must be strictly positive and less than 100. Given: 0"
    assert refusal(truncate=101) == "`truncate` must be strictly positive and less than 100. Given: 101"
    admission.check_request("x", GenerateParameters(truncate=100), LIMITS)


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 1e-6}, {"temperature": 1e6}, {"frequency_penalty": -2.0}, {"frequency_penalty": 2.0}, {"top_p": 0.999},
        {"top_k": 2**31 - 1}, {"stop": ("a",) * 4}, {"top_n_tokens": 5}, {"best_of": 0}, {"best_of": 1}, {"adapter_id": ""},
    ],
)  # fmt: skip
def test_the_edges_are_allowed(given: dict[str, Any]) -> None:
    admission.check_request("x", GenerateParameters(**given), LIMITS)


def test_best_of() -> None:
    def bound(limits: Limits, best_of: int) -> str:
        with pytest.raises(RequestError) as caught:
            admission.check(admission.BEST_OF_RULES, GenerateParameters(best_of=best_of), limits)
        return caught.value.message.removeprefix("Input validation error: ")

    assert bound(LIMITS, 3) == "`best_of` must be > 0 and <= 2. Given: 3"
    assert bound(LIMITS._replace(max_best_of=1), 2) == "`best_of` != 1 is not allowed for this endpoint"
    assert refusal(best_of=2) == "you must use sampling when `best_of` is > 1"
    assert refusal(best_of=2, temperature=1.0, seed=1) == "`seed` must not be set when `best_of` > 1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"best_of": 2}, "`best_of` != 1 is not supported when streaming tokens"),
        ({"best_of": 0}, "`best_of` != 1 is not supported when streaming tokens"),
        ({"decoder_input_details": True}, "`decoder_input_details` == true is not supported when streaming tokens"),
    ],
)
def test_what_streams_cannot_do(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        admission.check(admission.STREAM_RULES, GenerateParameters(**given), LIMITS)


def test_a_grammar_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="Input validation error: grammar is not supported"):
        admission.check((admission.GRAMMAR_RULE,), GenerateParameters(grammar=Grammar("regex", "a")), LIMITS)


@pytest.mark.parametrize(
    ("n_input", "max_new_tokens", "message"),
    [
        (28, 101, "`inputs` tokens + `max_new_tokens` must be <= 128. Given: 28 `inputs` tokens and 101 `max_new_tokens`"),
        (3, 5000, "`inputs` tokens + `max_new_tokens` must be <= 128. Given: 3 `inputs` tokens and 5000 `max_new_tokens`"),
        (101, 28, "`inputs` tokens + `max_new_tokens` must be <= 128. Given: 101 `inputs` tokens and 28 `max_new_tokens`"),
        (101, 27, "`inputs` must have less than 100 tokens. Given: 101"),
        (101, None, "`inputs` must have less than 100 tokens. Given: 101"),
        (0, 5, "`inputs` cannot be empty"),
    ],
)
def test_lengths(n_input: int, max_new_tokens: int | None, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        admission.check_lengths(n_input, max_new_tokens, LIMITS)
    assert caught.value.message == f"Input validation error: {message}"


def test_lengths_that_just_fit() -> None:
    admission.check_lengths(100, 28, LIMITS)
    admission.check_lengths(100, None, LIMITS)
    admission.check_lengths(1, 127, LIMITS)


def test_a_prompt_that_leaves_no_room_for_a_token_never_fits() -> None:
    with pytest.raises(RequestError, match="Given: 128 `inputs` tokens and 1 `max_new_tokens`"):
        admission.check_lengths(128, None, LIMITS._replace(max_input_tokens=128))


def test_permits_are_taken_at_once_or_refused_and_come_back() -> None:
    idle: list[int] = []
    permits = Permits(2)
    permits.when_idle = lambda: idle.append(1)
    with permits.take(), permits.take():
        with pytest.raises(RequestError) as caught, permits.take():
            raise AssertionError("a third one")
        assert (caught.value.status, caught.value.message) == (429, "Model is overloaded")
        assert caught.value.headers == {"retry-after": "1"}
        assert not idle
    assert (permits.taken, idle) == (0, [1])
    with permits.take():
        with pytest.raises(RequestError), permits.take(2):
            raise AssertionError("a second and a third one")
        assert permits.taken == 1


def test_without_a_limit_nobody_is_refused() -> None:
    permits = Permits(None)
    with permits.take(1000):
        assert permits.taken == 1000
