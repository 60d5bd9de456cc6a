"""Rules and dashboards against a live Prometheus after a load."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.streams import streams
from tests.compose.stack import ENGINE, ORACLE, Stack, engine
from tests.farm import ROOT, wait_for
from tests.servers import free_port

pytestmark = pytest.mark.dash

DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
VARIABLES = {"$__rate_interval": "1m", "$model": ".*", "$worker": ".*"}
TGI = re.findall(
    r"\w+",
    """
request_count request_success request_failure request_duration_count request_validation_duration_count request_queue_duration_count
request_inference_duration_count request_mean_time_per_token_duration_count request_generated_tokens_count request_input_length_count
request_max_new_tokens_count request_skipped_tokens_count queue_size batch_current_size batch_current_max_tokens batch_next_size_count
batch_inference_count batch_inference_success batch_inference_failure batch_inference_duration_count batch_forward_duration_count
batch_decode_duration_count batch_filter_duration_count batch_concat_duration_count batch_concat batch_max_total_tokens
""",
)
"""Every metric of TGI (reference §5), `_count` for histograms and the summary."""

OBSERVED = {f"tgi_{name}" for name in TGI if name.endswith("_count") or name in ("request_success", "batch_inference_success")}


class Live:
    """A Prometheus that watched a farm at work."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = self._http.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", (expression, answer)
        return list(answer["data"]["result"])


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {**ORACLE, "FARM_ORACLE_STEP_MS": "10", "FARM_WORKERS": "1", "FARM_GATEWAYS": "1"}
    stack = Stack(tmp_path_factory.mktemp("dash"), f"dash{free_port()}", **settings)
    try:
        stack.up("balancer", "gateway", "broker", "jobs", "worker", "prometheus", "grafana")
        stack.wait_ready(1)
        yield stack
    finally:
        stack.close()


@pytest.fixture(scope="module")
def live(stack: Stack) -> Iterator[Live]:
    """After 25 s of load: two scrapes lie within every rate."""
    with httpx.Client(base_url=f"http://127.0.0.1:{stack.prometheus_port}", timeout=10) as http:
        live = Live(http)
        work(stack, live)
        yield live


def work(stack: Stack, live: Live) -> None:
    wait_for(lambda: live.query('up{job="workers"} == 1') and live.query('up{job="gateways"} == 1'), 30)
    end_s = time.monotonic() + 25
    seed = 0
    while time.monotonic() < end_s:
        seed += 20
        shown = asyncio.run(streams(stack.url, range(seed, seed + 12), 40))
        assert not any(one.error for one in shown)


def panels() -> list[Any]:
    return [
        pytest.param(target["expr"], id=f"{path.stem}: {panel['title']}: {target['refId']}")
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    ]


def filled_in(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@pytest.mark.parametrize("expression", panels())
def test_every_panel_shows_a_series(live: Live, expression: str) -> None:
    wait_for(lambda: live.query(filled_in(expression)), 15, lambda: filled_in(expression))


@pytest.mark.parametrize("name", TGI)
def test_every_name_of_tgi_has_a_sample(live: Live, name: str) -> None:
    wait_for(lambda: live.query(f"tgi_{name}"), 10)
    if f"tgi_{name}" in OBSERVED:
        wait_for(lambda: float(live.query(f"sum(tgi_{name})")[0]["value"][1]) > 0, 10, lambda: name)


def test_there_are_four_dashboards_that_grafana_can_load() -> None:
    loaded = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert [one["title"] for one in loaded] == ["Delivery", "Farm", "Latency", "Worker and shapes"]
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = re.findall(r"uid: (\w+)", (provisioning / "datasources" / "prometheus.yaml").read_text())
    for one in loaded:
        assert len({panel["id"] for panel in one["panels"]}) == len(one["panels"])
        assert {panel["datasource"]["uid"] for panel in one["panels"]} == {source}


def test_promtool_accepts_configuration_and_rules(stack: Stack) -> None:
    (name,) = stack.containers("prometheus")
    engine("exec", name, "promtool", "check", "config", "/etc/prometheus/prometheus.yml")


def test_each_alert_fires_for_its_cause_only(stack: Stack, tmp_path: Path) -> None:
    for source in (ROOT / "deploy" / "prometheus" / "rules.yml", Path(__file__).parent / "rules_test.yml"):
        (tmp_path / source.name).write_text(source.read_text())
    image = re.search(r"(?m)^PROMETHEUS_IMAGE=(.+)$", (stack.folder / ".env").read_text())
    assert image is not None
    said = engine(
        "run",
        "--rm",
        "-v",
        f"{tmp_path}:/rules:ro",
        "-w",
        "/rules",
        "--entrypoint",
        "promtool",
        image[1],
        "test",
        "rules",
        "rules_test.yml",
    )
    assert "SUCCESS" in said, ENGINE
