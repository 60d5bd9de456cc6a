"""Models from a hub: what is downloaded, what is refused and how, what happens when the hub is away."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.config import Settings
from common.errors import StartError
from tests.farm import Farm, wait_for
from tests.servers import Server
from tests.workers.fake_hub import FakeHub
from workers.weights import local_path

MODEL = "acme/tiny"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 300_000,
    "pytorch_model.bin": b"pickle",
    "modeling_tiny.py": b"code",
    "original/consolidated.safetensors": b"copy",
    "README.md": b"hello",
}
SAFE = {"config.json", "tokenizer.json", "model.safetensors"}
LONGEST_S = 10.0

RESOLVE = """
import os, sys
from common.config import Settings
from common.errors import StartError
from workers.weights import local_path
try:
    print(local_path(Settings.from_env(os.environ), lambda what, done: None))
except StartError as error:
    print(error, file=sys.stderr)
    sys.exit(error.code)
"""


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(MODEL, FILES).running() as hub:
        yield hub


@pytest.fixture
def gated_hub() -> Iterator[FakeHub]:
    with FakeHub(MODEL, FILES, gated=True).running() as hub:
        yield hub


def environment(url: str, home: Path, **more: str) -> dict[str, str]:
    return {"MODEL_ID": MODEL, "HF_ENDPOINT": url, "HF_HOME": str(home), **more}


def resolve(url: str, home: Path, **more: str) -> Path:
    return local_path(Settings.from_env(environment(url, home, **more)), lambda _what, _done: None)


def refusal(url: str, home: Path, **more: str) -> StartError:
    """The one line with which the start ends, in time."""
    start_s = time.monotonic()
    with pytest.raises(StartError) as error:
        resolve(url, home, **more)
    assert time.monotonic() - start_s < LONGEST_S
    assert "\n" not in str(error.value)
    return error.value


def start_process(url: str, home: Path, **more: str) -> subprocess.Popen[str]:
    env = {**os.environ, **environment(url, home, **more)}
    return subprocess.Popen([sys.executable, "-c", RESOLVE], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_only_safe_files_are_downloaded_and_the_second_start_gets_none(hub: FakeHub, tmp_path: Path) -> None:
    folder = resolve(hub.url, tmp_path)
    assert {path.name for path in folder.iterdir()} == SAFE == set(hub.downloads)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    hub.downloads.clear()
    assert resolve(hub.url, tmp_path) == folder
    assert not hub.downloads


def test_progress_goes_from_nothing_to_all(hub: FakeHub, tmp_path: Path) -> None:
    seen: list[float] = []
    local_path(Settings.from_env(environment(hub.url, tmp_path)), lambda _what, done: seen.append(done))
    assert seen[0] == 0.0 and seen[-1] == 1.0 and all(0 <= done <= 1 for done in seen)


def test_trust_remote_code_brings_pickles_and_code(hub: FakeHub, tmp_path: Path) -> None:
    folder = resolve(hub.url, tmp_path, TRUST_REMOTE_CODE="true")
    assert {path.name for path in folder.iterdir()} == SAFE | {"pytorch_model.bin", "modeling_tiny.py"}


def test_a_model_with_pickles_only_is_refused_before_a_byte_of_it_is_loaded(tmp_path: Path) -> None:
    with FakeHub(MODEL, {name: data for name, data in FILES.items() if "safetensors" not in name}).running() as hub:
        error = refusal(hub.url, tmp_path)
    assert error.code == 2 and "--trust-remote-code" in str(error) and not hub.downloads


def test_a_revision_is_used_and_an_unknown_one_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    assert resolve(hub.url, tmp_path, REVISION=hub.commit).name == hub.commit
    error = refusal(hub.url, tmp_path, REVISION="v9")
    assert error.code == 3 and "v9" in str(error) and MODEL in str(error)


@pytest.mark.parametrize(
    ("token", "reason"), [("", "not set"), ("hf_wrong", "wrong or has no access"), ("hf_stranger", "wrong or has no access")]
)
def test_a_gated_model_is_refused_by_name_with_its_page_and_never_the_token(
    gated_hub: FakeHub, tmp_path: Path, token: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = refusal(gated_hub.url, tmp_path, **({"HF_TOKEN": token} if token else {}))
    text = str(error)
    assert error.code == 3 and f"{gated_hub.url}/{MODEL}" in text and "HF_TOKEN" in text and reason in text
    assert not token or token not in text + caplog.text


def test_a_gated_model_is_served_to_a_member(gated_hub: FakeHub, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("hf_member\n")
    assert (resolve(gated_hub.url, tmp_path, HF_TOKEN_FILE=str(token_file)) / "model.safetensors").is_file()


def test_a_model_that_does_not_exist_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    error = refusal(hub.url, tmp_path, MODEL_ID="acme/none")
    assert error.code == 3 and "acme/none" in str(error)


@pytest.mark.parametrize("how", ["closed", "silent", "failing"])
def test_a_hub_that_is_away_is_one_line_unless_the_model_is_cached(hub: FakeHub, tmp_path: Path, how: str) -> None:
    folder = resolve(hub.url, tmp_path / "cached")
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        urls = {name: f"http://127.0.0.1:{server.getsockname()[1]}" for name, server in (("silent", silent), ("closed", closed))}
        closed.close()
        hub.down = True
        url = urls.get(how, hub.url)
        error = refusal(url, tmp_path / "empty")
        assert error.code == 3 and "cannot be reached" in str(error) and MODEL in str(error)
        assert resolve(url, tmp_path / "cached") == folder


def test_offline_asks_nothing(hub: FakeHub, tmp_path: Path) -> None:
    folder = resolve(hub.url, tmp_path / "cached")
    hub.n_requests = 0
    assert resolve(hub.url, tmp_path / "cached", HF_HUB_OFFLINE="1") == folder
    error = refusal(hub.url, tmp_path / "empty", HF_HUB_OFFLINE="1")
    assert error.code == 3 and "HF_HUB_OFFLINE" in str(error)
    assert hub.n_requests == 0


def test_two_workers_at_once_get_each_file_once(hub: FakeHub, tmp_path: Path) -> None:
    workers = [start_process(hub.url, tmp_path) for _ in range(2)]
    folders = {worker.communicate(timeout=60)[0].strip() for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0] and len(folders) == 1
    assert set(hub.downloads.values()) == {1} and set(hub.downloads) == SAFE


def test_a_refused_worker_ends_with_status_3_and_one_line(gated_hub: FakeHub, tmp_path: Path) -> None:
    worker = start_process(gated_hub.url, tmp_path, HF_TOKEN="hf_canary_4711")
    out, err = worker.communicate(timeout=60)
    assert worker.returncode == 3 and out == "" and err.count("\n") == 1
    assert "hf_canary_4711" not in err


def test_other_downloads_of_an_engine_go_to_the_same_cache(tmp_path: Path, server: Server) -> None:
    """Libraries read the variable when they are imported, so the engine process has it from its first moment."""
    with Farm(tmp_path, server, {"HUGGINGFACE_HUB_CACHE": str(tmp_path / "hub")}) as farm:
        worker = farm.worker()
        wait_for(worker.ids, 30, farm.logs)
        variables = Path(f"/proc/{worker.engine_pid()}/environ").read_bytes().split(b"\0")
    assert f"HF_HUB_CACHE={tmp_path / 'hub'}".encode() in variables


def test_a_full_disk_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    home = tmp_path / "small"
    home.mkdir()
    command = f"mount -t tmpfs -o size=100k none {home} && exec {sys.executable} -c '{RESOLVE}'"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no user namespaces here to mount a small disk in")
    env = {**os.environ, **environment(hub.url, home)}
    worker = subprocess.run(["unshare", "-rm", "sh", "-c", command], env=env, text=True, capture_output=True, check=False, timeout=60)
    assert worker.returncode == 3 and "the disk is full" in worker.stderr and worker.stderr.count("\n") == 1
