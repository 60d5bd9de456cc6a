from __future__ import annotations

import struct
from typing import Any

import pytest

from common.errors import RequestError
from gateway import body
from gateway.schemas.tgi import GENERATE, GenerateParameters, GenerateRequest, Grammar

PREFIX = "Failed to deserialize the JSON body into the target type: "


def refusal(value: Any) -> str:
    with pytest.raises(RequestError) as caught:
        GENERATE(value)
    assert caught.value.status == 422
    assert caught.value.kind == "validation"
    return caught.value.message.removeprefix(PREFIX)


def parameters(**given: Any) -> GenerateParameters:
    return GENERATE({"inputs": "x", "parameters": given}).parameters


def test_absent_parameters_sample_and_empty_ones_are_greedy() -> None:
    assert GENERATE({"inputs": "x"}).parameters.do_sample
    assert GENERATE({"inputs": "x", "parameters": None}).parameters.do_sample
    assert not GENERATE({"inputs": "x", "parameters": {}}).parameters.do_sample


def test_null_equals_absent_everywhere() -> None:
    nulls = dict.fromkeys(GenerateParameters._fields)
    assert GENERATE({"inputs": "x", "stream": None, "parameters": nulls}) == GenerateRequest("x", GenerateParameters())


def test_unknown_fields_are_ignored() -> None:
    request = {"inputs": "x", "max_retries": 0, "parameters": {"stop_sequences": 3, "ignore_eos_token": True, "presence_penalty": []}}
    assert GENERATE(request).parameters == GenerateParameters()


def test_stop_may_be_a_string_a_list_or_null() -> None:
    assert parameters(stop="END").stop == ("END",)
    assert parameters(stop=["a", "b"]).stop == ("a", "b")
    assert parameters(stop=None).stop == ()


def test_numbers_become_float32_and_whole_numbers_are_numbers() -> None:
    assert parameters(temperature=1).temperature == 1.0
    assert parameters(temperature=0.7).temperature == struct.unpack("f", struct.pack("f", 0.7))[0]
    assert parameters(temperature=1e-60).temperature == 0.0


def test_a_grammar_needs_both_its_keys() -> None:
    assert parameters(grammar={"type": "regex", "value": "a+"}).grammar == Grammar("regex", "a+")
    assert refusal({"inputs": "x", "parameters": {"grammar": {"type": "json"}}}) == "parameters.grammar: missing field `value`"
    assert refusal({"inputs": "x", "parameters": {"grammar": {"type": "sound", "value": 1}}}).startswith(
        "parameters.grammar.type: unknown variant"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "invalid type: sequence, expected struct GenerateRequest"),
        ("secret", "invalid type: string, expected struct GenerateRequest"),
        ({}, "missing field `inputs`"),
        ({"inputs": None}, "missing field `inputs`"),
        ({"inputs": 5}, "inputs: invalid type: integer, expected a string"),
        ({"inputs": ["secret"]}, "inputs: invalid type: sequence, expected a string"),
        ({"inputs": "x", "stream": "secret"}, "stream: invalid type: string, expected a boolean"),
        ({"inputs": "x", "parameters": []}, "parameters: invalid type: sequence, expected struct GenerateParameters"),
        ({"inputs": "x", "parameters": {"temperature": "secret"}}, "parameters.temperature: invalid type: string, expected f32"),
        ({"inputs": "x", "parameters": {"temperature": True}}, "parameters.temperature: invalid type: boolean, expected f32"),
        ({"inputs": "x", "parameters": {"temperature": 1e39}}, "parameters.temperature: invalid value: floating point, expected f32"),
        ({"inputs": "x", "parameters": {"top_k": 1.0}}, "parameters.top_k: invalid type: floating point, expected i32"),
        ({"inputs": "x", "parameters": {"top_k": 2**31}}, "parameters.top_k: invalid value: integer, expected i32"),
        ({"inputs": "x", "parameters": {"max_new_tokens": -1}}, "parameters.max_new_tokens: invalid value: integer, expected u32"),
        ({"inputs": "x", "parameters": {"seed": 2**64}}, "parameters.seed: invalid value: integer, expected u64"),
        ({"inputs": "x", "parameters": {"best_of": True}}, "parameters.best_of: invalid type: boolean, expected usize"),
        ({"inputs": "x", "parameters": {"do_sample": 1}}, "parameters.do_sample: invalid type: integer, expected a boolean"),
        ({"inputs": "x", "parameters": {"stop": {"secret": 1}}}, "parameters.stop: invalid type: map, expected a sequence"),
        ({"inputs": "x", "parameters": {"stop": ["a", None]}}, "parameters.stop[1]: invalid type: null, expected a string"),
        ({"inputs": "x", "parameters": {"adapter_id": 3}}, "parameters.adapter_id: invalid type: integer, expected a string"),
    ],
)
def test_wrong_shapes_name_the_place_and_the_type_and_never_the_value(body: Any, message: str) -> None:
    assert refusal(body) == message


def test_a_field_given_twice_is_refused_and_an_unknown_one_is_not() -> None:
    assert refusal(body.parse(b'{"inputs":"a","inputs":"a"}')) == "duplicate field `inputs`"
    assert refusal(body.parse(b'{"inputs":"a","parameters":{"seed":null,"seed":1}}')) == "parameters: duplicate field `seed`"
    assert GENERATE(body.parse(b'{"inputs":"a","user":1,"user":2}')).inputs == "a"
