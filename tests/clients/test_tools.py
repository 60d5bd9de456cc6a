"""Compliance, fuzzing, evaluation and load tools; afterwards nothing is left behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import httpx
import pytest
import torch
from redis import Redis
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from common.keys import Cell
from tests.clients.conftest import Clients
from tests.clients.model import LENGTH
from tests.farm import wait_for

pytestmark = pytest.mark.clients

LANES = "*}lane:*"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture(autouse=True)
def nothing_left(clients: Clients) -> Iterator[None]:
    """No entry is pending in any lane and no slot is taken."""
    yield
    wait_for(lambda: pending(clients) == 0 and active(clients) == 0, 10, lambda: f"{pending(clients)} pending, {active(clients)} active")


def pending(clients: Clients) -> int:
    """A lane without entries is gone."""
    assert fnmatchcase(Cell("farm", "model", "fingerprint").lane(LENGTH), LANES)
    with Redis.from_url(clients.farm.server.url) as redis:
        return sum(int(redis.xpending(lane, "farm")["pending"]) for lane in redis.scan_iter(LANES))


def active(clients: Clients) -> float:
    page = httpx.get(f"{clients.url}/metrics", timeout=5).text
    (value,) = re.findall(r"^tgi_batch_current_size (\S+)$", page, re.MULTILINE)
    return float(value)


def test_llm_comply(clients: Clients) -> None:
    command = ("llm-comply", "run", "--format", "openai-chat", "-u", f"{clients.url}/v1", "-k", "x", "-m", "tiny")
    tests = ("basic-response", "system-prompt", "multi-turn", "streaming-response", "streaming-usage")
    output = clients.run("comply", *command, "-f", ",".join(f"chat-{test}" for test in tests))
    assert "5/5 passed" in output, output


def test_schemathesis(clients: Clients) -> None:
    clients.run(
        "schemathesis", "schemathesis", "run", f"{clients.url}/api-doc/openapi.json", "--checks", CHECKS, "--max-time", "40",
        "--phases", "examples,coverage,fuzzing", "--exclude-path-regex", "^/(docs|metrics)", "--seed", "1", "--no-color",
    )  # fmt: skip


TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
{more}
"""


def test_lm_eval(clients: Clients, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(
        "".join(json.dumps({"question": f"What is {n}?", "answer": " yes", "choices": [" yes", " no"]}) + "\n" for n in range(4))
    )
    generation = 'generation_kwargs: {max_gen_toks: 8, until: ["\\n"], do_sample: false}\nmetric_list: [{metric: exact_match}]'
    choice = "doc_to_choice: choices\nmetric_list: [{metric: acc}]"
    (tmp_path / "gen.yaml").write_text(TASK.format(name="farm_gen", data=data, kind="generate_until", more=generation))
    (tmp_path / "ll.yaml").write_text(TASK.format(name="farm_ll", data=data, kind="multiple_choice", more=choice))
    model = f"model=tiny,base_url={clients.url}/v1/completions,num_concurrent=2,max_retries=1,max_length={LENGTH}"
    out = tmp_path / "out"
    clients.run(
        "lm-eval", "lm_eval", "run", "--model", "local-completions", "--tasks", "farm_gen,farm_ll", "--include_path", str(tmp_path),
        "--model_args", f"{model},tokenizer_backend=huggingface,tokenizer={clients.model},tokenized_requests=True",
        "--output_path", str(out), "--log_samples",
        HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
    )  # fmt: skip
    (result,) = out.rglob("results*.json")
    results = json.loads(result.read_text())["results"]
    assert results["farm_gen"]["exact_match,none"] == 0.0
    (samples,) = out.rglob("samples_farm_ll*.jsonl")
    for sample in map(json.loads, samples.read_text().splitlines()):
        expected = [likelihood(clients.model, context, answer) for context, answer in map(arguments_of, sample["arguments"].values())]
        measured = [(float(response[0][0]), response[0][1] in (True, "True")) for response in sample["resps"]]
        assert [(pytest.approx(total, abs=1e-2), greedy) for total, greedy in expected] == measured


def arguments_of(arguments: dict[str, str]) -> tuple[str, str]:
    return arguments["arg_0"], arguments["arg_1"]


def likelihood(folder: Path, context: str, answer: str) -> tuple[float, bool]:
    """Log-likelihood of an answer, and whether a greedy model gives it, from the plain model."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(context + answer, add_special_tokens=False).ids
    n_context = len(tokenizer.encode(context, add_special_tokens=False).ids)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    rows = [(logprobs[pos - 1], ids[pos]) for pos in range(n_context, len(ids))]
    return sum(float(row[token]) for row, token in rows), all(int(row.argmax()) == token for row, token in rows)


def test_aiperf(clients: Clients, tmp_path: Path) -> None:
    clients.run(
        "aiperf", "aiperf", "profile", "--model", "tiny", "--url", clients.url, "--endpoint-type", "huggingface_generate", "--streaming",
        "--tokenizer", str(clients.model), "--isl", "64", "--isl-stddev", "16", "--osl", "32", "--concurrency", "8",
        "--request-count", "100", "--warmup-request-count", "4", "--random-seed", "7", "--ui", "none", "--workers-max", "1",
        "--record-processors", "1", "--no-gpu-telemetry", "--artifact-dir", str(tmp_path),
    )  # fmt: skip
    report = min(tmp_path.rglob("profile_export_aiperf.json"), key=lambda path: len(path.parts))
    measured = json.loads(report.read_text())
    assert measured["request_count"]["avg"] == 100
    assert not measured.get("error_summary")


def test_guidellm(clients: Clients, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    clients.run(
        "guidellm", "guidellm", "run", "--backend", f"kind=openai_http,target={clients.url},model=tiny", "--profile", "kind=poisson,rate=5",
        "--constraint", "kind=max_duration,seconds=30", "--tokenizer", f"kind=hf_auto,model={clients.model}",
        "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32", "--output", f"kind=json,path={report}", "--disable-progress",
        HF_HUB_OFFLINE="1",
    )  # fmt: skip
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["errored"] == 0 and totals["successful"] > 50, totals
