"""A host with one card, which is the double."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from workers.gaudi.double import CardDouble

CARD = CardDouble()


def insert_card() -> None:
    """For tests: an empty one."""
    global CARD
    CARD = CardDouble()


def is_available() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def get_device_name(device: Any = None) -> str:
    return "GAUDI2"


def synchronize() -> None:
    return


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return CARD.free_bytes, CARD.total_bytes


@contextlib.contextmanager
def sdp_kernel(enable_recompute: bool = False, **_: Any) -> Iterator[None]:
    yield


def wrap_in_hpu_graph(
    module: torch.nn.Module,
    asynchronous: bool = False,
    disable_tensor_cache: bool = False,
    dry_run: bool = False,
    max_graphs: int | None = None,
) -> torch.nn.Module:
    graphs = CARD.capture(module.forward)
    module.forward = graphs
    module.clear_cache = graphs.clear_cache
    return module
