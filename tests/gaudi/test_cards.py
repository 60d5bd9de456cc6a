"""Cards as a container sees them, the environment of the process that takes one, and what stops its start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.children import FATAL
from common.config import Settings
from common.errors import StartError
from workers.gaudi.cards import HABANA, Card, card_of, parse_modules, present, process_env, usable
from workers.gaudi.library import Versions
from workers.gaudi.refusals import (
    CONSTRAINTS,
    WAITS_S,
    acquire,
    is_busy,
    is_out_of_memory,
    load_failure,
    require_plain_weights,
    require_stack,
    require_supported,
)
from workers.supervisor import GIVES_UP

ROOT = Path(__file__).parent.parent.parent
MODULES = {0: 2, 1: 6, 2: 3, 3: 7, 4: 0, 5: 4, 6: 5, 7: 1}
"""Node → module of a real host (hl-smi -Q index,module_id)."""

GOOD = Versions("1.21.2", "1.24.1.12")

ALREADY = "synStatus=20 [Device already acquired] Device acquire failed."
FAILED = "synStatus=26 [Generic failure] Device acquire failed."
BUSY = (
    "Gaudi module 3 is held by another process; end it (hl-smi shows it), or name others in HABANA_VISIBLE_MODULES. "
    "In a container also check --runtime=habana --cap-add=sys_nice --ipc=host"
)


def host(root: Path, mapped: list[int], vendor: str = HABANA) -> Path:
    """A file system as a container sees it: /sys shows all cards of the host, /dev those it was given."""
    for node, module in MODULES.items():
        device = root / f"sys/class/accel/accel{node}/device"
        device.mkdir(parents=True)
        (device / "module_id").write_text(f"{module}\n")
        (device / "vendor").write_text(f"{vendor}\n")
    (root / "dev/accel").mkdir(parents=True)
    for node in mapped:
        (root / f"dev/accel/accel{node}").touch()
        (root / f"dev/accel/accel_controlD{node}").touch()
    (root / "dev/null").touch()
    return root


def refused(run: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(StartError) as refusal:
        run()
    return refusal.value.code, str(refusal.value)


def test_cards_of_a_host_in_the_order_of_their_modules(tmp_path: Path) -> None:
    cards = present(host(tmp_path, list(MODULES)))
    assert [card.module for card in cards] == list(range(8))
    assert cards[0] == Card(4, 0) and str(cards[0]) == "module 0"


def test_a_module_is_read_not_computed(tmp_path: Path) -> None:
    """vllm-gaudi PR #946: the one card of a container may be module 5."""
    root = host(tmp_path, [6])
    assert present(root) == (Card(6, 5),)
    assert card_of(1, 1, "5", root) == Card(6, 5)
    assert process_env(card_of(1, 1, None, root), "/c,false,10")["HLS_MODULE_ID"] == "5"


def test_another_makers_accelerator_is_no_card(tmp_path: Path) -> None:
    assert refused(lambda: present(host(tmp_path, [0], vendor="0x1022")))[0] == 4


def test_the_older_driver_says_no_module(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("hl0", "hl1", "hl_controlD0"):
        (tmp_path / "dev" / name).touch()
    assert present(tmp_path) == (Card(0, None), Card(1, None)) and str(Card(0, None)) == "card 0"
    assert "HLS_MODULE_ID" not in process_env(Card(0, None), "")
    assert usable(present(tmp_path), "4,6") == (Card(0, 4), Card(1, 6))


def test_no_card_has_a_status_and_a_line_of_its_own(tmp_path: Path) -> None:
    assert refused(lambda: present(tmp_path)) == (
        4,
        "no Gaudi card: there is neither /dev/accel/accel* nor /dev/hl* here; run on a host with Gaudi and its driver, "
        "and start the container with --runtime=habana --cap-add=sys_nice --ipc=host",
    )


def test_each_worker_takes_a_card_of_its_own(tmp_path: Path) -> None:
    """Case 7: never two workers on one module."""
    root = host(tmp_path, list(MODULES))
    assert [card_of(number, 3, "6,1,0", root).module for number in (1, 2, 3)] == [6, 1, 0]
    assert len({card_of(number, 8, None, root) for number in range(1, 9)}) == 8
    assert refused(lambda: card_of(3, 3, "0,1", root)) == (
        4,
        "worker 3 of 3 has no card: here are 2 (module 0, module 1); set WORKERS=2",
    )


def test_a_single_worker_takes_any_card_that_is_free(tmp_path: Path) -> None:
    """Another container of the same host may hold the first one."""
    card = card_of(1, 1, None, host(tmp_path, [0, 1]))
    env = process_env(card, "")
    assert str(card) == "card (any of modules 2, 6)"
    assert env["HABANA_VISIBLE_MODULES"] == "2,6" and "HLS_MODULE_ID" not in env


def test_modules_that_are_not_there_are_named(tmp_path: Path) -> None:
    root = host(tmp_path, [6, 7])
    assert refused(lambda: card_of(1, 1, "0", root)) == (
        2,
        "HABANA_VISIBLE_MODULES=0, but the cards here are modules 1, 5; hl-smi -Q index,module_id shows them",
    )
    assert usable(present(root), "all") == present(root) == usable(present(root), "")


@pytest.mark.parametrize("text", ["a", "0-3", "0,,1", "-1", "1,1", "0;1"])
def test_malformed_modules_are_refused(text: str) -> None:
    assert refused(lambda: parse_modules(text))[0] == 2


def test_what_the_bridge_reads_before_it_is_imported() -> None:
    assert process_env(Card(0, 3), "/data/recipes,false,8192") == {
        "PT_HPU_LAZY_MODE": "1",
        "PT_HPU_WEIGHT_SHARING": "0",
        "PT_HPU_RECIPE_CACHE_CONFIG": "/data/recipes,false,8192",
        "HLS_MODULE_ID": "3",
        "HABANA_VISIBLE_MODULES": "3",
    }


class Driver:
    """Answers `acquire` with these, one after the other."""

    def __init__(self, *answers: str, versions: Versions = GOOD) -> None:
        self.answers = list(answers)
        self.versions = lambda: versions
        self.waits_s: list[float] = []

    def acquire(self) -> str:
        answer = self.answers.pop(0)
        if "gaudi" not in answer:
            raise RuntimeError(answer)
        return answer

    def taken(self) -> str:
        return acquire(self, "module 3", self.waits_s.append)  # type: ignore[arg-type]


def test_a_busy_card_is_tried_again_and_then_named() -> None:
    """tgi-gaudi #93, optimum-habana #1611."""
    freed = Driver(ALREADY, FAILED, "gaudi2")
    assert freed.taken() == "gaudi2" and freed.waits_s == list(WAITS_S[:2])
    held = Driver(*[FAILED] * (len(WAITS_S) + 1))
    assert refused(held.taken) == (5, BUSY)
    assert held.waits_s == list(WAITS_S) and not held.answers


def test_any_other_failure_of_the_driver_is_not_a_busy_card() -> None:
    broken = Driver("synStatus=3 [Invalid argument] synInitialize failed")
    with pytest.raises(RuntimeError, match="synInitialize"):
        broken.taken()
    assert not broken.waits_s


@pytest.mark.parametrize(
    ("generation", "library", "stack", "line"),
    [
        (
            "gaudi",
            "1.21.2",
            "1.24.1.12",
            "Gaudi 1 needs Gaudi software ≤ 1.21 and optimum-habana ≤ 1.18, installed are 1.24.1.12 and 1.21.2; "
            "install with deploy/images/gaudi1-constraints.txt",
        ),
        (
            "gaudi3",
            "1.18.1",
            "1.21.0",
            "gaudi3 needs Gaudi software 1.24 and optimum-habana 1.21, installed are 1.21.0 and 1.18.1; "
            "start in an image of make image-gaudi",
        ),
    ],
)
def test_generations_go_with_releases(generation: str, library: str, stack: str, line: str) -> None:
    """vllm-fork #776: it says so instead of failing in the middle."""
    assert refused(lambda: require_stack(generation, Versions(library, stack))) == (7, line)


def test_a_missing_package_is_named_before_the_card_is_touched() -> None:
    for versions, line in (
        (Versions("", "1.24.0"), "optimum-habana is not installed: make image-gaudi builds an image with it"),
        (Versions("1.21.2", ""), "habana-torch-plugin is not installed: start in Habana's image, or in one of make image-gaudi"),
    ):
        driver = Driver("gaudi2", versions=versions)
        assert refused(driver.taken) == (7, line)
        assert driver.answers == ["gaudi2"]


def test_what_goes_together_passes_and_its_constraints_are_there() -> None:
    require_stack("gaudi2", Versions("1.21.2", "1.24.1.12"))
    require_stack("gaudi3", Versions("1.21.0", "1.24.0.445"))
    require_stack("gaudi", Versions("1.18.1", "1.21.0.555"))
    pins = dict(line.split("==") for line in (ROOT / CONSTRAINTS).read_text().splitlines() if line and not line.startswith("#"))
    require_stack("gaudi", Versions(pins["optimum-habana"], pins["habana-torch-plugin"]))


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (
            {"SHARDED": "true", "NUM_SHARD": "8"},
            "--num-shard 8: one model on several Gaudi cards is not built yet; "
            "leave --sharded and --num-shard out, and run one worker for each card with WORKERS",
        ),
        ({"QUANT_CONFIG": "/q.json"}, "QUANT_CONFIG=/q.json: FP8 and other quantized weights are not built yet on Gaudi"),
        ({"QUANTIZE": "fp8"}, "--quantize fp8: FP8 and other quantized weights are not built yet on Gaudi"),
    ],
)
def test_what_is_not_built_yet_is_said_before_a_card_is_touched(env: dict[str, str], line: str) -> None:
    code, said = refused(lambda: require_supported(Settings.from_env(env)))
    assert code == 2 and said.startswith(line)


def test_quantized_checkpoints_are_refused_by_name() -> None:
    config: dict[str, Any] = {"quantization_config": {"quant_method": "compressed-tensors"}}
    assert refused(lambda: require_plain_weights("RedHatAI/Meta-Llama-3-8B-Instruct-FP8", config)) == (
        2,
        "RedHatAI/Meta-Llama-3-8B-Instruct-FP8 is quantized (compressed-tensors): "
        "FP8 and other quantized weights are not built yet on Gaudi",
    )
    require_plain_weights("org/plain", {"model_type": "llama"})


@pytest.mark.parametrize("text", ["synStatus=8 [Out of memory] Device memory allocation failed", "HPU out of memory: 2 GiB asked"])
def test_too_little_memory_while_loading(text: str) -> None:
    error = RuntimeError(text)
    assert is_out_of_memory(error) and not is_busy(error)
    refusal = load_failure(error, "org/model")
    assert refusal is not None and (refusal.code, str(refusal)) == (
        8,
        "out of device memory while loading org/model: lower --max-batch-size or --max-total-tokens, or take a smaller model",
    )


def test_other_failures_of_a_load() -> None:
    refusal = load_failure(ValueError("Unsupported\n model"), "org/model")
    assert refusal is not None and (refusal.code, str(refusal)) == (2, "optimum-habana refuses the model: Unsupported model")
    assert load_failure(RuntimeError("anything else"), "org/model") is None


def test_a_busy_card_may_come_free_and_the_other_refusals_end_the_farm() -> None:
    assert {4, 7, 8} <= set(FATAL) and 5 not in GIVES_UP
