"""Which Gaudi cards this process may use, from device nodes and what the driver says of them (gaudi.md §5.7). Reads, never writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common.errors import StartError

NO_CARD = 4
"""Exit status."""

HABANA = "0x1da3"
"""PCI vendor; other makes have nodes in /dev/accel too."""

NO_CARD_LINE = (
    "no Gaudi card: there is neither /dev/accel/accel* nor /dev/hl* here; run on a host with Gaudi and its driver, "
    "and start the container with --runtime=habana --cap-add=sys_nice --ipc=host"
)


class Card(NamedTuple):
    """`node` may change when the host starts again, `module` (its place on the board) does not; None when the driver does not say.

    `any_of`: modules of which the driver takes the first that is free.
    """

    node: int
    module: int | None
    any_of: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.any_of:
            return f"card (any of modules {', '.join(map(str, self.any_of))})"
        return f"card {self.node}" if self.module is None else f"module {self.module}"


def card_of(number: int, n_workers: int, visible: str | None, root: Path = Path("/")) -> Card:
    """The card of worker `number` (from 1) of this host; one process owns a card. Raises `StartError`."""
    return nth(usable(present(root), visible), number, n_workers)


def nth(cards: Sequence[Card], number: int, n_workers: int) -> Card:
    """The card of one of several workers; a single worker takes any that is free, as another container may hold the first.

    Raises `StartError` when a host has fewer cards than workers, or none.
    """
    if not cards:
        raise StartError(NO_CARD_LINE, NO_CARD)
    if number > len(cards):
        there = ", ".join(map(str, cards))
        raise StartError(f"worker {number} of {n_workers} has no card: here are {len(cards)} ({there}); set WORKERS={len(cards)}", NO_CARD)
    modules = tuple(card.module for card in cards if card.module is not None)
    if n_workers == 1 and len(modules) == len(cards) > 1:
        return Card(cards[0].node, None, modules)
    return cards[number - 1]


def present(root: Path = Path("/")) -> tuple[Card, ...]:
    """The cards with a device node, ascending; /sys alone also shows those that were not given to a container. Raises `StartError`."""
    new = _nodes(root / "dev/accel", r"accel(\d+)")
    cards = [Card(node, _module(root, node)) for node in new if _is_gaudi(root, node)]
    if not new:
        cards = [Card(node, None) for node in _nodes(root / "dev", r"hl(\d+)")]
    if not cards:
        raise StartError(NO_CARD_LINE, NO_CARD)
    return tuple(sorted(cards, key=lambda card: (card.module is None, card.module, card.node)))


def usable(cards: Sequence[Card], visible: str | None) -> tuple[Card, ...]:
    """Those that HABANA_VISIBLE_MODULES leaves; raises `StartError`. Modules are read, never computed: one card alone may be module 5."""
    if visible is None or not visible.strip() or visible.strip().lower() == "all":
        return tuple(cards)
    modules = parse_modules(visible)
    if all(card.module is None for card in cards):
        return tuple(Card(card.node, module) for card, module in zip(cards, modules, strict=False))
    by_module = {card.module: card for card in cards}
    missing = [module for module in modules if module not in by_module]
    if missing:
        there = ", ".join(str(card.module) for card in cards)
        raise StartError(f"HABANA_VISIBLE_MODULES={visible}, but the cards here are modules {there}; hl-smi -Q index,module_id shows them")
    return tuple(by_module[module] for module in modules)


def parse_modules(text: str) -> tuple[int, ...]:
    """`0,1` as numbers, in this order; raises `StartError`."""
    parts = text.replace(" ", "").split(",")
    if not all(re.fullmatch(r"\d+", part) for part in parts) or len(set(parts)) < len(parts):
        raise StartError(f"Invalid argument: HABANA_VISIBLE_MODULES={text}, allowed is for example 0,1")
    return tuple(map(int, parts))


def process_env(card: Card, recipe_cache: str) -> dict[str, str]:
    """What the bridge reads once, when it is first imported: lazy mode (graphs need it), which card, the recipe cache."""
    env = {"PT_HPU_LAZY_MODE": "1", "PT_HPU_WEIGHT_SHARING": "0", "PT_HPU_RECIPE_CACHE_CONFIG": recipe_cache}
    if card.any_of:
        env["HABANA_VISIBLE_MODULES"] = ",".join(map(str, card.any_of))
    elif card.module is not None:
        env |= {"HLS_MODULE_ID": str(card.module), "HABANA_VISIBLE_MODULES": str(card.module)}
    return env


def _nodes(folder: Path, pattern: str) -> list[int]:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(pattern, name)))


def _is_gaudi(root: Path, node: int) -> bool:
    vendor = _said(root, node, "vendor")
    return vendor in ("", HABANA)


def _module(root: Path, node: int) -> int | None:
    said = _said(root, node, "module_id")
    return int(said) if said.isdecimal() else None


def _said(root: Path, node: int, name: str) -> str:
    path = root / f"sys/class/accel/accel{node}/device/{name}"
    return path.read_text().strip() if path.is_file() else ""
