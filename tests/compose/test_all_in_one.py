"""One container with the command line of TGI's images, as root and under another user, with a folder of the host that root owns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.compose.stack import TAG, engine
from tests.farm import wait_for
from tests.servers import free_port

pytestmark = pytest.mark.compose

IMAGE = f"tokenfarm:{TAG}"
ORACLE = ("-e", "FARM_BACKEND=oracle", "-e", "MAX_TOTAL_TOKENS=512")
LOW_PORTS = ("--sysctl", "net.ipv4.ip_unprivileged_port_start=0")
"""What Docker sets by itself."""

BODY = {"inputs": "What is Deep Learning?", "parameters": {"max_new_tokens": 4}}


@contextmanager
def container(options: Sequence[str], arguments: Sequence[str] = (), inner_port: int = 80) -> Iterator[tuple[str, str]]:
    """Name and address of one that serves."""
    port = free_port()
    name = f"one-{port}"
    engine("run", "-d", "--name", name, "-p", f"127.0.0.1:{port}:{inner_port}", *options, IMAGE, *arguments)
    try:
        wait_for(lambda: healthy(port), 200, lambda: engine("logs", name))
        yield name, f"http://127.0.0.1:{port}"
    finally:
        engine("rm", "-f", "-v", "-t", "5", name)


def healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder that only root may write."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    assert folder.stat().st_uid == 0, "runs as root only"
    return folder


def users(name: str) -> set[str]:
    """Who runs the processes."""
    code = "import os, pathlib; print({p.stat().st_uid for p in pathlib.Path('/proc').glob('[0-9]*')})"
    return set(engine("exec", "-u", "0", name, "python3", "-c", code).strip("{}\n ").split(", ")) - {"0"}


def test_as_root_it_makes_the_folder_its_own_and_becomes_run_as(data: Path) -> None:
    """The whole thing: the demo model on the CPU, kept in the folder of the host."""
    options = ("-v", f"{data}:/data", "-e", "RUN_AS=1234", "-e", "MAX_BATCH_SIZE=2")
    with container(options, ("--model-id", "SmolLM2-135M-Instruct", "--max-total-tokens", "128")) as (name, url):
        assert httpx.post(f"{url}/generate", json=BODY, timeout=60).status_code == 200
        assert users(name) == {"1234"}
    kept = list(data.rglob("model.safetensors"))
    assert kept and {path.stat().st_uid for path in (data, *kept)} == {1234}


def test_under_another_user_it_starts_too(data: Path) -> None:
    with container((*ORACLE, *LOW_PORTS, "-v", f"{data}:/data", "--user", "12345:0")) as (name, url):
        assert httpx.post(f"{url}/generate", json=BODY, timeout=20).status_code == 200
        assert "/data cannot be written by user 12345" in engine("logs", name)
    assert data.stat().st_uid == 0 and not list(data.iterdir())


def test_sys_nice_is_kept_where_it_was_given() -> None:
    """Gaudi's software wants it; nobody else gets it."""
    code = (
        "import pathlib; print({int(line.split()[1], 16) >> 23 & 1 for line in pathlib.Path('/proc/1/status').open() if 'CapEff' in line})"
    )
    for given in (True, False):
        with container((*ORACLE, *(("--cap-add=sys_nice",) if given else ()))) as (name, _):
            assert engine("exec", name, "python3", "-c", code).strip() == f"{{{int(given)}}}"


def test_sagemaker() -> None:
    options = (*ORACLE, "-e", "HF_MODEL_ID=org/name", "-e", "HF_MODEL_REVISION=r1", "-e", "SM_NUM_GPUS=1")
    with container(options, ("serve",), 8080) as (_, url):
        assert httpx.get(f"{url}/ping", timeout=5).status_code == 200
        assert httpx.get(f"{url}/info", timeout=5).json()["model_id"] == "org/name"
    ended = engine("run", "--rm", *ORACLE, IMAGE, "serve", check=False)
    assert "HF_MODEL_ID is not set" in ended and len(ended.splitlines()) == 1


def test_inference_endpoints(data: Path) -> None:
    (data / "config.json").write_text("{}")
    with container((*ORACLE, "-v", f"{data}:/repository:ro")) as (_, url):
        assert httpx.get(f"{url}/info", timeout=5).json()["model_id"] == "/repository"
