from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from common import metrics


@dataclass
class Counts:
    takeovers: int = 0
    divergences: int = 0
    holes: int = 0
    cancelled: int = 0
    resubmitted: int = 0


def gateway_page(counts: Counts | None = None) -> str:
    return metrics.exposition(metrics.gateway(100, 200, counts or Counts(), lambda: 3).registry).decode()


def worker_page() -> str:
    return metrics.exposition(metrics.worker().registry).decode()


def types(page: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))


def buckets(page: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf'^{name}_bucket{{(?:method="decode",)?le="([\d.e+-]+)"}}', page, re.MULTILINE)]


TGI_GATEWAY = {
    "tgi_request_count": "counter",
    "tgi_request_success": "counter",
    "tgi_request_failure": "counter",
    "tgi_request_duration": "histogram",
    "tgi_request_validation_duration": "histogram",
    "tgi_request_queue_duration": "histogram",
    "tgi_request_inference_duration": "histogram",
    "tgi_request_mean_time_per_token_duration": "histogram",
    "tgi_request_generated_tokens": "histogram",
    "tgi_request_input_length": "histogram",
    "tgi_request_max_new_tokens": "histogram",
    "tgi_request_skipped_tokens": "summary",
    "tgi_queue_size": "gauge",
}
TGI_WORKER = {
    "tgi_batch_current_size": "gauge",
    "tgi_batch_current_max_tokens": "gauge",
    "tgi_batch_next_size": "histogram",
    "tgi_batch_inference_count": "counter",
    "tgi_batch_inference_success": "counter",
    "tgi_batch_inference_failure": "counter",
    "tgi_batch_inference_duration": "histogram",
    "tgi_batch_forward_duration": "histogram",
    "tgi_batch_decode_duration": "histogram",
    "tgi_batch_filter_duration": "histogram",
    "tgi_batch_concat_duration": "histogram",
    "tgi_batch_concat": "counter",
    "tgi_batch_max_total_tokens": "gauge",
}


def test_tgi_names_and_types_are_exact() -> None:
    def of_tgi(page: str) -> dict[str, str]:
        return {name: kind for name, kind in types(page).items() if name.startswith("tgi_")}

    assert of_tgi(gateway_page()) == TGI_GATEWAY
    assert of_tgi(worker_page()) == TGI_WORKER
    assert "_created" not in gateway_page() + worker_page()
    assert not re.search(r"tgi_\w+_total\b(?!_tokens)", (gateway_page() + worker_page()).replace("max_total_tokens", ""))


def test_names_of_the_farm_end_as_prometheus_wants() -> None:
    for name, kind in types(gateway_page() + worker_page()).items():
        if name.startswith("farm_"):
            assert name.endswith("_total") == (kind == "counter"), name


def test_every_series_is_there_from_the_start_with_0() -> None:
    for page in (gateway_page().replace("tgi_queue_size 3.0", "tgi_queue_size 0.0"), worker_page()):
        values = [line.rpartition(" ")[2] for line in page.splitlines() if not line.startswith("#")]
        assert set(values) == {"0.0"}
    for err in ("validation", "overloaded", "template", "generation", "incomplete", "dropped"):
        assert f'tgi_request_failure{{err="{err}"}} 0.0' in gateway_page()
    for method in ("prefill", "decode"):
        assert f'tgi_batch_inference_count{{method="{method}"}} 0.0' in worker_page()


def test_buckets_are_tgis() -> None:
    durations = [0.0001 * 1.5**i for i in range(1, 36)]
    assert buckets(gateway_page(), "tgi_request_duration") == pytest.approx(durations)
    assert buckets(worker_page(), "tgi_batch_inference_duration") == pytest.approx(durations)
    assert buckets(gateway_page(), "tgi_request_input_length") == pytest.approx([float(i) for i in range(1, 101)])
    assert buckets(gateway_page(), "tgi_request_generated_tokens") == pytest.approx([2.0 * i for i in range(1, 101)])
    assert buckets(worker_page(), "tgi_batch_next_size") == [float(i) for i in range(1, 1025)]


def test_the_length_histograms_follow_the_served_model() -> None:
    numbers = metrics.gateway(100, 200, Counts(), lambda: 0)
    numbers.fit(100, 200)
    numbers.input_tokens.observe(5)
    numbers.fit(100, 200)
    assert "tgi_request_input_length_count 1.0" in metrics.exposition(numbers.registry).decode()
    numbers.fit(1000, 2000)
    assert buckets(metrics.exposition(numbers.registry).decode(), "tgi_request_max_new_tokens") == pytest.approx(
        [20.0 * i for i in range(1, 101)]
    )


def test_what_the_relay_counts_and_what_waits_is_read_when_the_page_is_made() -> None:
    page = gateway_page(Counts(takeovers=2, holes=5))
    assert "farm_takeovers_total 2.0" in page
    assert "farm_holes_repaired_total 5.0" in page
    assert "tgi_queue_size 3.0" in page


def test_pages_of_several_workers_are_summed_and_each_family_is_there_once() -> None:
    first, second = metrics.worker(), metrics.worker()
    first.calls["decode"].inc(2)
    second.calls["decode"].inc(3)
    second.current_size.set(4)
    second.call_s["decode"].observe(0.01)
    pages = [metrics.exposition(worker.registry) for worker in (first, second)]
    page = metrics.exposition(metrics.gateway(100, 200, Counts(), lambda: 0).registry, pages).decode()
    assert 'tgi_batch_inference_count{method="decode"} 5.0' in page
    assert "tgi_batch_current_size 4.0" in page
    assert 'tgi_batch_inference_duration_count{method="decode"} 1.0' in page
    assert types(page).keys() >= TGI_GATEWAY.keys() | TGI_WORKER.keys()
    for name in types(page):
        assert page.count(f"# TYPE {name} ") == page.count(f"# HELP {name} ") == 1
    series = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
