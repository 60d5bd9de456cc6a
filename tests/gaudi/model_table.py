"""The table of models in the README, from the one that the engine reads."""

from __future__ import annotations

from workers.gaudi.models import HABANA, STOCK, page, types

FIRST, LAST = "<!-- Gaudi models: make parity writes this -->\n", "<!-- end -->"


def table() -> str:
    """All names of TGI's Gaudi page, then the types beyond it."""
    rows = [
        f"| {name} | `{model_type}` | {types()[model_type].way} | {types()[model_type].reason} |" for name, model_type in page().items()
    ]
    more = [
        f"`{model_type}` ({row.way})"
        for model_type, row in types().items()
        if model_type not in page().values() and row.way in (HABANA, STOCK)
    ]
    head = "| on TGI's page | type | way | because |\n|---|---|---|---|"
    return "\n".join([head, *rows, "", f"Also served: {', '.join(more)}.", ""])


def in_text(text: str) -> str:
    """The table as it stands in a README."""
    return text.split(FIRST)[1].split(LAST, 1)[0]


def with_table(text: str) -> str:
    """A README with the table of today."""
    before, after = text.split(FIRST)
    return before + FIRST + table() + LAST + after.split(LAST, 1)[1]
