"""The broker as the compose file starts it: `broker.sh` and `users.acl` with real servers and a real farm."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis

from common import scripts
from tests.farm import ROOT, Farm, events, wait_for
from tests.servers import binaries, free_port

COMPOSE = ROOT / "deploy" / "compose"
USERS = ("gateway", "worker", "jobs")
OF_GATEWAYS = ("submit", "cancel")
ADMIN = "user admin on >admin ~* &* +@all\n"
LIBRARY = "client|setinfo"
"""What redis-py says about itself at each connection; that it is refused does no harm, and Redis 7.0 does not know it."""


class Broker:
    """`broker.sh` on a free port, with an administrator to look inside."""

    def __init__(self, folder: Path, kind: str, **env: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.secrets = folder / "secrets"
        for sub in ("bin", "config", "run", "data", "secrets"):
            (folder / sub).mkdir(exist_ok=True)
        (folder / "bin" / f"{kind}-server").symlink_to(binaries()[kind])
        (folder / "config" / "users.acl").write_text((COMPOSE / "users.acl").read_text() + ADMIN)
        for user in USERS:
            (self.secrets / f"{user}_password").write_text(f"secret of {user}\n")
        self.env = {
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "FARM": "farm",
            "FARM_BROKER_FOLDER": f"{folder}/config",
            "FARM_BROKER_PORT": str(self.port),
            "FARM_BROKER_SECRETS": str(self.secrets),
            "FARM_BROKER_RUN": f"{folder}/run",
            "FARM_BROKER_DATA": f"{folder}/data",
            **env,
        }
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Broker:
        self.process = self.run()
        wait_for(self.answers, 10)
        return self

    def run(self) -> subprocess.Popen[str]:
        command = ["/bin/sh", COMPOSE / "broker.sh"]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def answers(self) -> bool:
        try:
            return bool(redis.Redis(port=self.port, protocol=2).ping())
        except redis.ConnectionError:
            return False

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=10)

    def as_user(self, user: str) -> redis.Redis:
        return redis.Redis(port=self.port, username=user, password="admin" if user == "admin" else f"secret of {user}", protocol=2)

    def url_of(self, user: str) -> dict[str, str]:
        return {"REDIS_URL": f"redis://{user}@127.0.0.1:{self.port}/0", "FARM_REDIS_PASSWORD_FILE": str(self.secrets / f"{user}_password")}


@pytest.fixture
def kind() -> str:
    return "valkey"


@pytest.fixture
def broker(tmp_path: Path, kind: str) -> Iterator[Broker]:
    broker = Broker(tmp_path, kind).start()
    yield broker
    broker.stop()


@pytest.mark.parametrize("kind", sorted(binaries()))
def test_a_farm_lives_on_its_rights(broker: Broker, tmp_path: Path) -> None:
    """Streams, a takeover, a client that leaves, a drain, a detached result: no command is refused."""
    env = {"FARM": "farm", "FARM_ORACLE_STEP_MS": "20", "FARM_LEASE_S": "1"}
    with Farm(tmp_path, broker, env) as farm:  # type: ignore[arg-type]  # it has what a Server has
        url = farm.gateway(**broker.url_of("gateway"))
        workers = [farm.worker(**broker.url_of("worker")) for _ in range(2)]
        farm.wait_ready(2)
        body = {"inputs": "w5 w6", "parameters": {"max_new_tokens": 60}}
        with httpx.stream("POST", f"{url}/generate_stream", json=body, timeout=20) as leaving:
            next(leaving.iter_lines())
        for worker in workers:
            with httpx.stream("POST", f"{url}/generate_stream", json=body, timeout=20) as stream:
                lines = stream.iter_lines()
                next(lines)
                worker.signal_engine(signal.SIGKILL)
                assert len(events(lines)) == 59
        detached = {"Idempotency-Key": "k", "x-farm-detach": "1"}
        assert httpx.post(f"{url}/generate", json=body, timeout=20, headers=detached).status_code == 202
        view = httpx.get(f"{url}/farm", timeout=5).json()
        assert view["broker"]["up"]
        workers[0].end()
        farm.gateways[0].end()
        refused = {entry["object"].lower() for entry in broker.as_user("admin").acl_log()} - {LIBRARY}
        assert not refused, refused


def test_jobs_live_on_their_rights(broker: Broker, tmp_path: Path) -> None:
    from tests.workers.test_jobs import ask, said, start

    secret = {"FARM_JOBS_PASSWORD_FILE": str(broker.secrets / "jobs_password")}
    env = {"FARM_JOBS_URL": f"redis://jobs@127.0.0.1:{broker.port}/1", "HF_HUB_OFFLINE": "1", **secret}
    worker = start(tmp_path, "jobs", env)
    process = ask(env, "/no/such/model")
    assert "no such folder" in said(process)
    worker.end()
    os.close(worker.parent_end)
    refused = {entry["object"].lower() for entry in broker.as_user("admin").acl_log()} - {LIBRARY}
    assert not refused, refused


FORBIDDEN = [
    ("KEYS", "*"), ("SCAN", "0"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("SHUTDOWN",),
    ("CLIENT", "LIST"), ("MONITOR",), ("EVAL", "return 1", "0"),
    ("GET", "{other:model@1/0}boot"), ("PUBLISH", "{other:model@1/0}ev:g", "x"),
]  # fmt: skip


@pytest.mark.parametrize("user", USERS)
def test_nobody_may_list_administer_or_reach_another_farm(broker: Broker, user: str) -> None:
    client = broker.as_user(user)
    assert client.ping()
    for command in FORBIDDEN:
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command(*command)


def test_gateways_only_read_the_registry(broker: Broker) -> None:
    broker.as_user("worker").hset("farm:models", "m", "d")
    assert broker.as_user("gateway").hgetall("farm:models") == {b"m": b"d"}
    for forbidden in (
        lambda: broker.as_user("gateway").hset("farm:models", "m", "d"),
        lambda: broker.as_user("jobs").hgetall("farm:models"),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            forbidden()


@pytest.mark.parametrize("name", scripts.NAMES)
def test_all_commands_of_a_script_are_allowed_to_who_runs_it(name: str) -> None:
    user = "gateway" if name in OF_GATEWAYS else "worker"
    rights = next(line for line in (COMPOSE / "users.acl").read_text().splitlines() if line.startswith(f"user {user} "))
    used = {match.lower().replace(" ", "|") for match in re.findall(r'redis\.p?call\("(\w+)"', scripts.source(name))}
    allowed = {right.removeprefix("+").split("|")[0] for right in rights.split() if right.startswith("+")}
    assert used <= allowed


def test_prompts_reach_the_disk_only_when_asked(tmp_path: Path) -> None:
    for persist in ("0", "1"):
        folder = tmp_path / persist
        folder.mkdir()
        broker = Broker(folder, "valkey", FARM_PERSIST=persist).start()
        broker.as_user("worker").set("{farm:m@1/0}boot", "a prompt")
        broker.stop()
        kept = [path for path in folder.rglob("*") if path.is_file() and b"a prompt" in path.read_bytes()]
        assert bool(kept) == (persist == "1")
        broker.start()
        assert broker.as_user("gateway").get("{farm:m@1/0}boot") == (b"a prompt" if persist == "1" else None)
        broker.stop()


def test_a_missing_secret_is_one_line(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "valkey")
    (broker.secrets / "worker_password").write_text("")
    ended = subprocess.run(["/bin/sh", COMPOSE / "broker.sh"], env=broker.env, capture_output=True, text=True, timeout=10, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines() == ["Error: the secret worker_password is missing or empty: run make-secrets"]


@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("redis-server")), reason="needs openssl and a server with TLS")
def test_tls(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "redis")
    key, certificate = broker.secrets / "broker_key", broker.secrets / "broker_certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True,
    )  # fmt: skip
    shutil.copy(certificate, broker.secrets / "broker_ca")
    broker.process = subprocess.Popen(["/bin/sh", COMPOSE / "broker.sh"], env=broker.env, stdout=subprocess.PIPE, text=True)
    url = f"rediss://worker@localhost:{broker.port}/0?ssl_ca_certs={certificate}"
    with Farm(tmp_path, broker, {"FARM": "farm"}) as farm:  # type: ignore[arg-type]
        farm.worker(REDIS_URL=url, FARM_REDIS_PASSWORD_FILE=str(broker.secrets / "worker_password"))
        address = farm.gateway(
            REDIS_URL=url.replace("worker@", "gateway@"), FARM_REDIS_PASSWORD_FILE=str(broker.secrets / "gateway_password")
        )
        farm.wait_ready()
        answer = httpx.post(f"{address}/generate", json={"inputs": "w5", "parameters": {"max_new_tokens": 3}}, timeout=10)
        assert answer.status_code == 200
    broker.stop()
