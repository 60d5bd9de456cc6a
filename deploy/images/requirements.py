"""Prints what the named extras of pyproject.toml need, one requirement a line: a layer of an image that code does not change."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
for extra in sys.argv[1:]:
    print(*project["optional-dependencies"][extra], sep="\n")
print(*project["dependencies"], sep="\n")
