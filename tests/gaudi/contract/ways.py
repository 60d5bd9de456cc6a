"""`python -m tests.gaudi.contract.ways`: tries every type in each way, and writes `workers/gaudi/models.json` and the README's table."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from tests.farm import ROOT
from tests.gaudi import model_table
from tests.gaudi.contract.parity import EQUAL, results
from tests.gaudi.contract.tiny import CHECKPOINTS, TYPES
from workers.gaudi import models
from workers.gaudi.models import CPU_ONLY, HABANA, REMOTE_CODE, STOCK, TABLE, VISION

Found = Mapping[str, Mapping[str, str]]
"""Run → name → result."""

PAGE = {
    "deepseek-R1": "deepseek_v3",
    "deepseek-v2": "deepseek_v2",
    "Llama2": "llama",
    "Llama3": "llama",
    "CodeLlama": "llama",
    "Mixtral": "mixtral",
    "Mistral": "mistral",
    "Qwen 2": "qwen2",
    "Qwen 3": "qwen3",
    "Qwen 3 Moe": "qwen3_moe",
    "Phi-1.5": "phi",
    "Phi-3": "phi3",
    "PhiMoe": "phimoe",
    "Gemma": "gemma",
    "Gemma2": "gemma2",
    "Gemma3 Text": "gemma3_text",
    "Granite": "granite",
    "Cohere": "cohere",
    "dbrx": "dbrx",
    "Starcoder2": "starcoder2",
    "Falcon": "falcon",
    "GPT-2": "gpt2",
    "gpt-j-6b": "gptj",
    "gpt-bigcode": "gpt_bigcode",
    "Baichuan": "baichuan",
    "Llava Next (1.6)": "llava_next",
    "Mllama": "mllama",
    "idefics 2": "idefics2",
    "idefics 3": "idefics3",
    "PaliGemma": "paligemma",
    "Llama4": "llama4",
    "Gemma3": "gemma3",
    "Qwen 2.5 VL": "qwen2_5_vl",
    "Qwen 2 VL": "qwen2_vl",
}
"""Names in docs/source/backends/gaudi.mdx of TGI, January 2026, and what their checkpoints call themselves; the last nine take images."""

UNTRIED = {"baichuan": {"way": REMOTE_CODE, "reason": "its code comes with the checkpoint, and no reference is here to compare with"}} | {
    model_type: {"way": VISION, "reason": "images are not served yet"} for model_type in list(PAGE.values())[-9:]
}


def row(model_type: str, found: Found) -> dict[str, str]:
    """The best way that gives the tokens of `transformers` for all its checkpoints."""
    names = [name for name in (*TYPES, *CHECKPOINTS) if name.partition("/")[0] == model_type]

    def equal(run: str) -> bool:
        return all(found[run][name] == EQUAL for name in names)

    fused, unfused = equal("fused"), equal("unfused")
    if fused or unfused:
        return {"way": HABANA} | ({} if fused and unfused else {"fused": "always" if fused else "never"})
    if equal("stock"):
        return {"way": STOCK, "reason": _reason(found["fused"][model_type])}
    return {"way": CPU_ONLY, "reason": "its experts are chosen on the host, which no graph can do"}


def _reason(result: str) -> str:
    if result.startswith("AssertionError"):
        return "optimum-habana has no class of it"
    if result.endswith("differ"):
        return "optimum-habana's class gives other tokens"
    return f"optimum-habana's class fails ({result.partition(':')[0]})"


def main() -> None:
    names = [*TYPES, *CHECKPOINTS]
    with tempfile.TemporaryDirectory() as folder:
        results(Path(folder), "oracle", names)
        found = {run: results(Path(folder), run, names) for run in ("fused", "unfused", "stock")}
    types = {model_type: row(model_type, found) for model_type in TYPES} | UNTRIED
    versions = {name: metadata.version(name) for name in ("optimum-habana", "transformers")}
    TABLE.write_text(json.dumps({**versions, "types": dict(sorted(types.items())), "page": PAGE}, indent=1) + "\n")
    models.types.cache_clear()
    readme = ROOT / "README.md"
    readme.write_text(model_table.with_table(readme.read_text()))


if __name__ == "__main__":
    sys.exit(main())
