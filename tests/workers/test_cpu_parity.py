"""Our engine gives `transformers.generate`'s greedy tokens in fp32; `python -m tests.parity.run` does this for every type."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.drive import drive, expected, plan, tiny_engine
from tests.parity.tiny import tiny_model


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "mistral", "gpt2"])
def test_rows_equal_generate_whatever_joins_or_leaves_beside_them(model_type: str, tmp_path: Path) -> None:
    model = tiny_model(model_type)
    jobs = plan()
    drive(tiny_engine(model, tmp_path), jobs)
    assert [job.tokens for job in jobs] == [expected(model, job) for job in jobs]
    assert len({token for job in jobs for token in job.tokens}) > 20, "a model that repeats itself proves nothing"


def test_rows_equal_generate_with_scaled_rotary_positions(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = tiny_model("llama", rope_parameters={**scaling, "original_max_position_embeddings": 32})
    jobs = plan(seed=1)
    drive(tiny_engine(model, tmp_path), jobs)
    assert [job.tokens for job in jobs] == [expected(model, job) for job in jobs]
