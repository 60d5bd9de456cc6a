"""The compose file, unchanged, with a settings file of its own: Docker where its daemon answers, else Podman."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.farm import ROOT, wait_for
from tests.servers import free_port

DOCKER = shutil.which("docker") is not None and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
ENGINE = "docker" if DOCKER else "podman"
COMPOSE = ["docker", "compose"] if DOCKER else ["podman-compose"]
ENV = {**os.environ, "DISABLE_HC_SYSTEMD": "true"}
"""Podman's health checks need systemd timers, which not every machine has."""

TAG = os.environ.get("TAG", "0.1.0")
MOST_FILES = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
ORACLE = {"FARM_BACKEND": "oracle", "FARM_ORACLE_SALTED": "true", "FARM_ORACLE_PREFILL_MS": "20", "MAX_TOTAL_TOKENS": "1024"}


def engine(*arguments: str, check: bool = True, timeout_s: float = 60) -> str:
    """Output of one command of the container engine, both streams."""
    ended = subprocess.run(
        [ENGINE, *arguments], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    assert ended.returncode == 0 or not check, f"{ENGINE} {' '.join(arguments)}\n{ended.stdout}"
    return ended.stdout


class Stack:
    """One project; `close` takes away all that it made."""

    def __init__(self, folder: Path, name: str, **settings: str) -> None:
        self.folder = folder / "deploy" / "compose"
        self.name = name
        self.port = free_port()
        self.prometheus_port = free_port()
        shutil.copytree(ROOT / "deploy", folder / "deploy", ignore=shutil.ignore_patterns("secrets"))
        subprocess.run([self.folder / "make-secrets"], check=True)
        small = {"WORKER_MEMORY": "2g", "FARM_DRAIN_S": "20", "FARM_STOP_GRACE": "30s", "FARM_GATEWAYS": "2", "FARM_WORKERS": "2"}
        ports = {"PORT": str(self.port), "PROMETHEUS_PORT": str(self.prometheus_port), "GRAFANA_PORT": str(free_port())}
        self.set(TAG=TAG, FARM_NOFILE=str(MOST_FILES), **{**small, **ports, **settings})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set(self, **settings: str) -> None:
        """Changes lines of the settings file; all names must be there."""
        path = self.folder / ".env"
        text = path.read_text()
        for name, value in settings.items():
            text, n = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", text)
            assert n == 1, name
        path.write_text(text)

    def compose(self, *arguments: str, timeout_s: float = 180) -> str:
        command = [*COMPOSE, "-p", self.name, "-f", "compose.yaml", *arguments]
        ended = subprocess.run(
            command, cwd=self.folder, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
        )
        return ended.stdout

    def up(self, *services: str) -> str:
        """Starts what does not run yet."""
        return self.compose("up", "-d", "--no-build", *services)

    def close(self) -> None:
        self.compose("down", "-v", "-t", "1")
        engine("network", "rm", "-f", f"{self.name}_default", check=False)  # podman-compose leaves it

    def containers(self, service: str, running: bool = True) -> list[str]:
        """Names, by number."""
        labels = [f"label=com.docker.compose.{key}={value}" for key, value in (("project", self.name), ("service", service))]
        chosen = [word for label in labels for word in ("--filter", label)]
        return sorted(engine("ps", *([] if running else ["-a"]), *chosen, "--format", "{{.Names}}").split())

    def logs(self, service: str) -> str:
        return "".join(engine("logs", name) for name in self.containers(service, running=False))

    def worker_ids(self) -> list[str]:
        """All worker ids that ever connected in the containers that are still there."""
        return re.findall(r"Connected worker=(\S+)", self.logs("worker"))

    def inside(self, path: str, gateway: str | None = None) -> str:
        """A page of a gateway that the balancer keeps inside."""
        code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:3000{path}', timeout=5).read().decode())"
        return engine("exec", gateway or self.containers("gateway")[-1], "python3", "-c", code)

    def n_active(self) -> int:
        """Rows in use, over all workers."""
        return sum(worker["active"] for worker in json.loads(self.inside("/farm"))["workers"])

    def wait_ready(self, n_workers: int, within_s: float = 60) -> None:
        def ready() -> bool:
            try:
                healthy = httpx.get(f"{self.url}/health", timeout=5).status_code == 200
                return healthy and all(len(json.loads(self.inside("/sd/workers", g))) == n_workers for g in self.containers("gateway"))
            except (httpx.HTTPError, AssertionError):
                return False

        wait_for(ready, within_s, lambda: self.logs("gateway")[-2000:] + self.logs("worker")[-2000:] + self.logs("broker")[-1000:])


WATCH = """
import json, time, urllib.request
seen, end_s = None, time.time() + 120
while time.time() < end_s:
    page = urllib.request.urlopen("http://127.0.0.1:3000/sd/workers").read()
    metrics = urllib.request.urlopen("http://127.0.0.1:3000/metrics").read().decode()
    ready = next(line.split()[-1] for line in metrics.splitlines() if line.startswith('farm_workers{state="ready"}'))
    now = [sorted(target["labels"]["worker"] for target in json.loads(page)), float(ready)]
    if now != seen:
        print(json.dumps([time.time(), *now]), flush=True)
        seen = now
    time.sleep(0.1)
"""


class Watch:
    """What a gateway's discovery and metrics say over time: (seconds since 1970, worker ids, ready workers)."""

    def __init__(self, gateway: str) -> None:
        self.changes: list[tuple[float, list[str], float]] = []
        self._process = subprocess.Popen(
            [ENGINE, "exec", gateway, "python3", "-u", "-c", WATCH], env=ENV, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.changes.append(tuple(json.loads(line)))

    def first(self, condition: Callable[[list[str], float], bool], after_s: float = 0.0) -> float | None:
        """When the condition was first seen to hold."""
        return next((at_s for at_s, workers, ready in self.changes if at_s >= after_s and condition(workers, ready)), None)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        self._reader.join(10)
