"""A takeover on a real engine changes no byte of a seeded text, and none of a greedy one (design §7)."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from tests.chaos.checks import soon, tokens_served
from tests.chaos.streams import BACKEND
from tests.farm import Farm
from tests.parity.tiny import VOCAB_SIZE, tiny_model
from tests.servers import Server

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]
N_TOKENS = 900


def model_folder(folder: Path) -> Path:
    model = tiny_model("llama", max_position_embeddings=2048)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({f"w{token}": token for token in range(VOCAB_SIZE)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


async def text(http: httpx.AsyncClient, url: str, parameters: dict[str, Any]) -> str:
    body = {"inputs": "w5 w6 w7 w8", "parameters": {"max_new_tokens": N_TOKENS, **parameters}}
    answer = await http.post(f"{url}/generate", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["generated_text"])


@pytest.mark.parametrize("parameters", [{"seed": 42, "do_sample": True, "temperature": 0.8}, {"seed": 1, "do_sample": False}])
async def test_a_takeover_changes_no_byte(tmp_path: Path, server: Server, parameters: dict[str, Any]) -> None:
    env = {
        "FARM_BACKEND": "cpu" if BACKEND == "oracle" else BACKEND, "MODEL_ID": str(model_folder(tmp_path / "model")),
        "MAX_TOTAL_TOKENS": "1024", "MAX_BATCH_SIZE": "4", "WORKERS": "2", "FARM_EXACT_MAX_TOKENS": "2000", "DTYPE": "bfloat16",
    }  # fmt: skip
    with Farm(tmp_path, server, env) as farm:
        url = farm.gateway()
        workers = [farm.worker(), farm.worker()]
        await asyncio.to_thread(farm.wait_ready, 2, 90)
        async with httpx.AsyncClient(timeout=100) as http:
            undisturbed = await text(http, url, parameters)
            neighbours = [asyncio.create_task(text(http, url, {"seed": seed, "do_sample": True})) for seed in range(3)]
            before = tokens_served(farm)
            disturbed = asyncio.create_task(text(http, url, parameters))
            await soon(lambda: tokens_served(farm) > before + 150, 30)
            for worker in workers:
                worker.signal_engine(signal.SIGKILL)
                await asyncio.sleep(0.2)
            assert await disturbed == undisturbed
            await asyncio.gather(*neighbours)
        assert farm.metric("farm_takeovers_total") >= 1
        assert farm.metric("farm_divergences_total") == 0
