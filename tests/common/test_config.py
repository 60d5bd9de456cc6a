from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import OPTIONS, WITHOUT_MEANING, Settings
from common.errors import StartError

LAUNCHER_FLAGS = """
--model-id x --revision main --validation-workers 2 --sharded true --num-shard 2 --quantize awq --speculate 2 --dtype bfloat16
--kv-cache-dtype fp8_e5m2 --trust-remote-code --max-concurrent-requests 8 --max-best-of 1 --max-stop-sequences 2 --max-top-n-tokens 3
--max-input-tokens 10 --max-total-tokens 20 --waiting-served-ratio 1.2 --max-batch-prefill-tokens 40 --max-batch-total-tokens 80
--max-waiting-tokens 5 --max-batch-size 4 --cuda-graphs 1,2 --hostname ::1 --port 81 --prometheus-port 9000 --shard-uds-path /tmp/x
--master-addr localhost --master-port 29500 --huggingface-hub-cache /tmp --weights-cache-override /tmp --disable-custom-kernels
--cuda-memory-fraction 0.5 --rope-scaling linear --rope-factor 2 --json-output --otlp-endpoint http://x --otlp-service-name x
--cors-allow-origin a --cors-allow-origin b --api-key k --watermark-gamma 0.5 --watermark-delta 2 --ngrok --ngrok-authtoken x --ngrok-edge x
--tokenizer-config-path x --disable-grammar-support --env --max-client-batch-size 4 --lora-adapters x --usage-stats off
--payload-limit 100 --enable-prefill-logprobs --graceful-termination-timeout 3
"""
"""Every flag of TGI's launcher (reference §6.1)."""


def settings(*argv: str, **env: str) -> Settings:
    return Settings.from_env(env, argv)


def test_every_launcher_flag_is_accepted_and_read() -> None:
    read = settings(*LAUNCHER_FLAGS.split())
    assert (read.model_id, read.sharded, read.num_shard, read.max_batch_size, read.waiting_served_ratio) == ("x", True, 2, 4, 1.2)
    assert (read.cors_allow_origin, read.hostname, read.port, read.drain_s, read.env) == (("a", "b"), "::1", 81, 3.0, True)
    assert len(read.notes) == sum(f"--{option.name.replace('_', '-')}" in LAUNCHER_FLAGS.split() for option in WITHOUT_MEANING)


def test_every_flag_has_an_environment_name_of_the_same_effect() -> None:
    values = {"bool": "true", "int": "7", "float": "0.5", "str": "word", "tuple[int, ...]": "3,5", "tuple[str, ...]": "a,b"}
    for option in (*OPTIONS, *WITHOUT_MEANING):
        special = {"redis_url": "redis://h:1", "jobs_url": "redis://h:1/1", "hostname": "127.0.0.9", "sharded": "false"}
        value = special.get(option.name, values[option.kind])
        value = option.choices[-1] if option.choices else value
        for env, flag in zip(option.envs, option.flags, strict=False):
            assert settings(**{env: value}) == dataclasses.replace(settings(flag, value), notes=settings(**{env: value}).notes), env


def test_a_flag_wins_over_the_environment() -> None:
    assert settings("--max-batch-size", "2", MAX_BATCH_SIZE="3").max_batch_size == 2
    assert settings("--max-input-tokens", "2", MAX_INPUT_LENGTH="3").max_input_tokens == 2


def test_short_flags() -> None:
    assert (settings("-p", "9", "-g", "4").port, settings("-p", "9", "-g", "4").drain_s) == (9, 4.0)


def test_defaults_are_those_of_the_launcher() -> None:
    read = settings()
    assert (read.max_best_of, read.max_stop_sequences, read.max_top_n_tokens, read.max_client_batch_size) == (2, 4, 5, 4)
    assert (read.payload_limit, read.max_waiting_tokens, read.waiting_served_ratio, read.drain_s) == (2_000_000, 20, 0.3, 90.0)
    assert read.max_concurrent_requests is None


def test_old_names() -> None:
    assert settings(MAX_INPUT_LENGTH="5").max_input_tokens == settings("--max-input-length", "5").max_input_tokens == 5
    assert settings(FARM_DRAIN_S="5").drain_s == 5.0
    assert settings(HUGGING_FACE_HUB_TOKEN="t").hf_token == settings(HF_API_TOKEN="t").hf_token == "t"


def test_either_name_skips_the_warm_up() -> None:
    assert settings(VLLM_SKIP_WARMUP="true").skip_warmup and settings(WARMUP_ENABLED="false").skip_warmup
    assert not settings().skip_warmup and not settings(VLLM_SKIP_WARMUP="false", WARMUP_ENABLED="true").skip_warmup


def test_an_empty_environment_value_is_unset() -> None:
    assert settings(MAX_BATCH_SIZE="", MODEL_ID=" ") == settings()


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"MAX_BATCH_SIZE": "four"}, "MAX_BATCH_SIZE=four, allowed is a whole number of at least 1"),
        ({"MAX_BATCH_SIZE": "0"}, "MAX_BATCH_SIZE=0, allowed is a whole number of at least 1"),
        ({"PORT": "70000"}, "PORT=70000, allowed is a whole number of at least 0 and at most 65535"),
        ({"WAITING_SERVED_RATIO": "nan"}, "WAITING_SERVED_RATIO=nan, allowed is a number of at least 0"),
        ({"JSON_OUTPUT": "maybe"}, "JSON_OUTPUT=maybe, allowed is true or false"),
        ({"DTYPE": "int3"}, "DTYPE=int3, allowed is one of auto, float16, bfloat16, float32"),
        ({"FARM_LANES": "128,x"}, "FARM_LANES=128,x, allowed is whole numbers separated by commas of at least 2"),
        ({"HF_TOKEN_FILE": "/nonexistent"}, "HF_TOKEN_FILE=/nonexistent, allowed is a readable text file"),
        ({"MAX_INPUT_TOKENS": "5", "MAX_INPUT_LENGTH": "6"}, "MAX_INPUT_TOKENS and MAX_INPUT_LENGTH contradict each other"),
        ({"MAX_INPUT_TOKENS": "8", "MAX_TOTAL_TOKENS": "8"}, "`max_input_tokens`(8) must be < `max_total_tokens`(8)"),
        ({"MAX_INPUT_TOKENS": "8", "MAX_BATCH_PREFILL_TOKENS": "4"}, "`max_input_tokens`(8) must be <= `max_batch_prefill_tokens`(4)"),
        ({"MAX_TOTAL_TOKENS": "8", "MAX_BATCH_TOTAL_TOKENS": "4"}, "`max_total_tokens`(8) must be <= `max_batch_total_tokens`(4)"),
        ({"SHARDED": "true"}, "SHARDED=true, allowed is false with NUM_SHARD=1"),
        ({"FARM_LANES": "64,256", "MAX_TOTAL_TOKENS": "128"}, "FARM_LANES=256, allowed is at most `max_total_tokens`(128)"),
        ({"REDIS_URL": "http://x"}, "REDIS_URL, allowed is redis://"),
        ({"FARM_REDIS_PASSWORD": "x"}, "FARM_REDIS_PASSWORD, allowed is only with REDIS_URL"),
    ],
)
def test_what_is_wrong_stops_the_start_with_key_value_and_what_is_allowed(env: dict[str, str], said: str) -> None:
    with pytest.raises(StartError) as refused:
        settings(**env)
    assert said in str(refused.value)
    assert refused.value.code == 2
    assert "\n" not in str(refused.value)


def test_an_unknown_flag_stops_the_start_without_its_value() -> None:
    with pytest.raises(StartError, match="--api-kye is unknown") as refused:
        settings("--api-kye=canary")
    assert "canary" not in str(refused.value)


@given(st.sampled_from([option for option in OPTIONS if option.envs]), st.text(max_size=12))
def test_any_text_is_either_read_or_refused(option: object, text: str) -> None:
    assert isinstance(option, type(OPTIONS[0]))
    try:
        settings(**{option.envs[0]: text})
    except StartError as refused:
        assert option.envs[0] in str(refused) or f"`{option.name}`" in str(refused)


def test_what_others_put_into_the_environment_is_ignored() -> None:
    read = settings(
        HOSTNAME="3f2a9c", PORT="tcp://10.0.0.1:80", FARM_METRICS_PORT="udp://1:2", FARM_SERVICE_HOST="10.0.0.1", FARM_PORT="tcp://1:2"
    )
    assert dataclasses.replace(read, notes=()) == settings()
    assert read.notes == ("HOSTNAME=3f2a9c is not an IP address and is ignored",)


def test_what_has_no_effect_is_noted_once_and_a_misspelt_own_name_too() -> None:
    assert settings(CUDA_GRAPHS="0", FARM_LEASE="3").notes == ("CUDA_GRAPHS has no effect here", "FARM_LEASE is not a setting")
    assert settings(CUDA_GRAPHS="0", FARM_PARENT_FD="5").notes == ()


def test_secrets_come_from_files_too(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    read = settings(HF_TOKEN_FILE=str(secret), API_KEY_FILE=str(secret), FARM_REDIS_PASSWORD_FILE=str(secret), REDIS_URL="redis://me@h:1/2")
    assert (read.hf_token, read.api_key, read.broker_url) == ("s3cret", "s3cret", "redis://me:s3cret@h:1/2")


def test_secrets_are_never_shown() -> None:
    env = {"HF_TOKEN": "canary1", "API_KEY": "canary2", "REDIS_URL": "redis://u:canary%33@h:1", "FARM_REDIS_PASSWORD": "canary4"}
    read = settings(**env)
    assert "canary" not in repr(read) + read.describe()
    assert {"canary1", "canary2", "canary%33", "canary3", "canary4"} <= set(read.secrets())
    with pytest.raises(StartError) as refused:
        settings(REDIS_URL="http://u:canary@h:1")
    assert "canary" not in str(refused.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().port = 1  # type: ignore[misc]


def test_an_empty_secret_file_counts_as_unset(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n")
    assert settings(API_KEY_FILE=str(tmp_path / "key")).api_key is None


def test_the_jobs_database_is_the_one_beside_the_brokers() -> None:
    assert settings(REDIS_URL="redis://u:p@h:7/0").jobs_broker_url == "redis://u:p@h:7/1"
    assert settings(REDIS_URL="unix:///run/b.sock").jobs_broker_url == "unix:///run/b.sock?db=1"
    given = settings(FARM_JOBS_URL="rediss://jobs@h/3?ssl_ca_certs=/ca", FARM_JOBS_PASSWORD="a/b")
    assert given.jobs_broker_url == "rediss://jobs:a%2Fb@h/3?ssl_ca_certs=/ca"
    assert "a/b" in given.secrets()
