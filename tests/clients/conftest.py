"""One farm of real processes for all clients, and their programs run in environments of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients import environments
from tests.clients.model import LENGTH, write_model
from tests.farm import Farm
from tests.servers import Server

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM_S = 120


@dataclass
class Clients:
    """The farm's addresses: `url` takes everything, `narrow` one request at a time."""

    farm: Farm
    url: str
    narrow: str
    model: Path

    def run(self, environment: str, *command: str, timeout_s: float = PROGRAM_S, **env: str) -> str:
        """Runs a command in an environment; returns its output, fails with it."""
        folder = environments.environment(environment)
        own = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "FARM", "PYTHON"))}
        own |= {"URL": self.url, "NARROW_URL": self.narrow, "MODEL": str(self.model), "NODE_PATH": str(folder / "node_modules")}
        own |= {"PATH": f"{folder / 'bin'}:{own['PATH']}", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            command, env=own | env, cwd=self.farm.folder, stdin=subprocess.DEVNULL, timeout=timeout_s,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-6000:]}\n{self.farm.logs()[-3000:]}"
        return done.stdout

    def program(self, environment: str, name: str, **env: str) -> str:
        """Runs one of `programs/`."""
        return self.run(environment, "node" if name.endswith(".cjs") else "python", str(PROGRAMS / name), **env)


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    folder = tmp_path_factory.mktemp("clients")
    model = write_model(folder / "model")
    server = Server(folder).start()
    settings = {
        "MODEL_ID": str(model),
        "FARM_BACKEND": "cpu",
        "FARM_SERVED_NAME": "tiny",
        "DTYPE": "float32",
        "MAX_TOTAL_TOKENS": str(LENGTH),
        "MAX_BATCH_SIZE": "8",
        "ENABLE_PREFILL_LOGPROBS": "true",
    }
    with Farm(folder, server, settings) as farm:
        url, narrow = farm.gateway(), farm.gateway(MAX_CONCURRENT_REQUESTS="1")
        farm.worker()
        farm.wait_ready(timeout_s=120)
        yield Clients(farm, url, narrow, model)
    server.stop()
