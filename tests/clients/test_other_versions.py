"""`common` and `workers` beside the oldest `transformers` that an accelerator's library pins (design §4)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.clients import environments
from tests.farm import ROOT

pytestmark = pytest.mark.clients

PROGRAM = """
import importlib, pkgutil, transformers
import common, workers
assert transformers.__version__.startswith("4.55"), transformers.__version__
skipped = {"workers.__main__", "workers.jobs.__main__"}
for package in (common, workers):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name not in skipped:
            importlib.import_module(module.name)
import torch
print("imported beside", transformers.__version__, torch.__version__)
"""


def test_every_module_imports_beside_transformers_4_55() -> None:
    python = environments.python("transformers-4.55")
    env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": str(Path.home())}
    done = subprocess.run([python, "-c", PROGRAM], cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "imported beside 4.55" in done.stdout
