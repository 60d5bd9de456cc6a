"""Every type that is served gives the tokens of plain `transformers`, whoever joins, leaves or is cancelled beside it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from common.errors import StartError
from tests.gaudi.contract.conftest import NAMES
from tests.gaudi.contract.parity import EQUAL, results, wanted
from tests.gaudi.contract.real import OnStub, engine_over, settings
from tests.gaudi.contract.tiny import WRONG
from tests.schedule import run
from workers.gaudi.engine import SharedColumnEngine
from workers.gaudi.models import EXPERTS, HABANA, STOCK, way_of

pytestmark = [pytest.mark.contract_gaudi, pytest.mark.filterwarnings("default")]

RIGHT = [name for name in NAMES if name not in WRONG]


@pytest.fixture(scope="session")
def found(folder: Path) -> dict[str, dict[str, str]]:
    """Way → name → result of a worker that starts with it, each way in a process of its own."""
    return {way: results(folder, "served", [name for name in NAMES if way_or_none(folder / name) == way]) for way in (HABANA, STOCK)}


def way_or_none(folder: Path) -> str | None:
    try:
        return way_of(folder)
    except StartError:
        return None


@pytest.mark.parametrize("name", RIGHT)
def test_its_tokens_are_those_of_transformers(found: dict[str, dict[str, str]], folder: Path, name: str) -> None:
    """Nothing compiles on the way, and nothing in a graph depends on values."""
    assert found[way_of(folder / name)][name] == EQUAL


@pytest.fixture(scope="session")
def lost(folder: Path) -> dict[str, str]:
    return results(folder, "fused", WRONG)


@pytest.mark.parametrize("name", WRONG)
def test_a_lost_setting_is_still_lost(found: dict[str, dict[str, str]], lost: dict[str, str], folder: Path, name: str) -> None:
    """One that is equal here was mended upstream: relax `setting_lost`. Its stock class has it, where there is one for a card."""
    assert lost[name] != EQUAL
    assert way_or_none(folder / name) == (None if name.partition("/")[0] in EXPERTS else STOCK)
    assert found[STOCK].get(name, EQUAL) == EQUAL


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"LIMIT_HPU_GRAPH": "false"},
        {"ENABLE_HPU_GRAPH": "false"},
        {"MAX_BATCH_SIZE": "1"},
        {"USE_FLASH_ATTENTION": "false"},
    ],
    ids=["as it comes", "captured prefills", "no graphs", "one row", "unfused"],
)
def test_other_settings_give_the_same_tokens(folder: Path, env: dict[str, str]) -> None:
    check(folder, "llama", 1, OnStub(fused=settings(**env).use_flash_attention), **env)


@pytest.mark.parametrize("seed", range(2, 6))
def test_other_schedules_give_the_same_tokens(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compactions: list[int] = []
    compact = SharedColumnEngine.compact
    monkeypatch.setattr(SharedColumnEngine, "compact", lambda engine: (compactions.append(1), compact(engine)))
    check(folder, "qwen3", seed, OnStub())
    assert len(compactions) > 2, "more than those of the warm-up"


def check(folder: Path, name: str, seed: int, library: OnStub, **env: str) -> None:
    drive(engine_over(folder / name, HABANA, library, **env), folder, name, seed)


def drive(engine: SharedColumnEngine, folder: Path, name: str, seed: int) -> None:
    from habana_frameworks.torch import hpu

    n_compiled = hpu.CARD.n_compilations
    jobs = wanted(name)
    run(engine, jobs, random.Random(seed))
    assert [job.tokens for job in jobs] == json.loads((folder / name / "tokens.json").read_text())
    assert (hpu.CARD.n_compilations, engine.ledger.n_unwarmed) == (n_compiled, 0)
