"""Every metric of the farm (TGI reference §5, design §4): no other file creates one.

Names, types, labels and buckets of `tgi_*` are TGI's; every series is there from the start with 0 and label values are fixed.
`tgi_request_*` and `tgi_queue_size` belong to gateways, `tgi_batch_*` to workers, so sums over processes are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; charset=utf-8"

DURATION_S = tuple(0.0001 * 1.5**i for i in range(1, 36))
FAILURES = ("validation", "overloaded", "template", "generation", "incomplete", "dropped")
METHODS = ("prefill", "decode")
TOKEN_KINDS = ("prompt", "generated")
YES_NO = ("yes", "no")
CONCAT_REASONS = ("backpressure", "wait_exceeded", "chunking")


class RelayCounts(Protocol):
    """What a relay counts by itself."""

    takeovers: int
    divergences: int
    holes: int
    cancelled: int
    resubmitted: int


class GatewayMetrics:
    """One gateway's numbers; the three length histograms take their buckets from the model's limits (tokens)."""

    def __init__(
        self, max_input_tokens: int, max_total_tokens: int, counts: RelayCounts, n_waiting: Callable[[], int], keys: Sequence[str]
    ) -> None:
        self.registry = r = CollectorRegistry(auto_describe=False)
        self.requests = Counter("tgi_request_count", "Requests received", registry=r)
        self.successes = Counter("tgi_request_success", "Requests that ended with their text", registry=r)
        self.failures = _each(Counter("tgi_request_failure", "Requests that ended with an error", ["err"], registry=r), FAILURES)
        self.duration_s = _durations("tgi_request_duration", "From arrival to end", r)
        self.validation_s = _durations("tgi_request_validation_duration", "From arrival to the queue", r)
        self.queue_s = _durations("tgi_request_queue_duration", "In the queue", r)
        self.inference_s = _durations("tgi_request_inference_duration", "From the queue to the end", r)
        self.per_token_s = _durations("tgi_request_mean_time_per_token_duration", "Inference per generated token", r)
        self.first_token_s = _durations("farm_first_token_seconds", "From arrival to the first token", r)
        self.gap_s = _durations("farm_token_gap_seconds", "Mean time between tokens of a request", r)
        self.good = _each(Counter("farm_slo_requests", "Requests by whether they were as fast as promised", ["met"], registry=r), YES_NO)
        self.skipped = NoSpeculation(r)
        tokens = Counter("farm_tokens_total", "Tokens of requests, by API key", ["key", "kind"], registry=r)
        self.tokens = {(key, kind): tokens.labels(key, kind) for key in keys for kind in TOKEN_KINDS}
        Gauge("tgi_queue_size", "Requests of this gateway that wait for a slot", registry=r).set_function(n_waiting)
        Relayed(counts, r)
        self.view = View(r)
        self._fit(max_input_tokens, max_total_tokens)

    def fit(self, max_input_tokens: int, max_total_tokens: int) -> None:
        """Takes the limits of the served model; when they change the length histograms begin again."""
        if self._limits == (max_input_tokens, max_total_tokens):
            return
        for histogram in (self.input_tokens, self.generated_tokens, self.max_new_tokens):
            self.registry.unregister(histogram)
        self._fit(max_input_tokens, max_total_tokens)

    def _fit(self, max_input_tokens: int, max_total_tokens: int) -> None:
        self._limits = (max_input_tokens, max_total_tokens)
        inputs, totals = _hundredths(max_input_tokens), _hundredths(max_total_tokens)
        self.input_tokens = Histogram("tgi_request_input_length", "Tokens of prompts", buckets=inputs, registry=self.registry)
        self.generated_tokens = Histogram("tgi_request_generated_tokens", "Tokens of answers", buckets=totals, registry=self.registry)
        self.max_new_tokens = Histogram("tgi_request_max_new_tokens", "Most tokens of answers", buckets=totals, registry=self.registry)


class WorkerMetrics:
    """One worker's numbers."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry(auto_describe=False)
        self.current_size = Gauge("tgi_batch_current_size", "Running requests", registry=r)
        self.current_max_tokens = Gauge("tgi_batch_current_max_tokens", "Tokens reserved by running requests", registry=r)
        self.max_total_tokens = Gauge("tgi_batch_max_total_tokens", "Tokens the batch holds", registry=r)
        sizes = [float(n) for n in range(1, 1025)]
        self.next_size = Histogram("tgi_batch_next_size", "Requests of a prefill", buckets=sizes, registry=r)
        self.calls = _each(Counter("tgi_batch_inference_count", "Device calls", ["method"], registry=r), METHODS)
        self.calls_done = _each(Counter("tgi_batch_inference_success", "Device calls that ended well", ["method"], registry=r), METHODS)
        self.calls_failed = _each(Counter("tgi_batch_inference_failure", "Device calls that failed", ["method"], registry=r), METHODS)
        self.call_s = _durations_of("tgi_batch_inference_duration", "Whole calls", r, METHODS)
        self.forward_s = _durations_of("tgi_batch_forward_duration", "The model alone", r, METHODS)
        self.decode_s = _durations_of("tgi_batch_decode_duration", "Choosing tokens and making text", r, METHODS)
        self.filter_s = _durations_of("tgi_batch_filter_duration", "Sending events and freeing slots", r, METHODS)
        self.concat_s = _durations_of("tgi_batch_concat_duration", "Joining new requests to running ones", r, ("decode",))
        self.concats = _each(Counter("tgi_batch_concat", "Why new requests joined", ["reason"], registry=r), CONCAT_REASONS)
        self.tokens = Counter("farm_generated_tokens_total", "Tokens generated", registry=r)
        self.prefill_tokens = Counter("farm_prefill_tokens_total", "Prompt tokens prefilled", registry=r)
        self.prefill_computed_tokens = Counter("farm_prefill_computed_tokens_total", "The same with padding", registry=r)
        self.unwarmed_shapes = Counter("farm_unwarmed_shapes_total", "Shapes first seen while serving", registry=r)
        self.inexact_resumes = Counter("farm_inexact_resume_total", "Exact takeovers that had to be fast ones", registry=r)
        self.nan_rows = Counter("farm_nan_rows_total", "Rows whose logits were not finite", registry=r)
        self.unjournaled_steps = Gauge("farm_unjournaled_steps", "Steps computed and not yet in the journal", registry=r)
        self.equal_runs = Counter("farm_equal_token_runs_total", "Rows that gave one token 64 times in a row", registry=r)
        self.start_progress = Gauge("farm_start_progress", "What part of its present step the start has done; 1 once it serves", registry=r)
        self.start_heartbeat = Gauge("farm_start_heartbeat_seconds", "When the start last showed life, in seconds since 1970", registry=r)
        self.fenced = Counter("farm_fenced_total", "Times this worker had lost its lease", registry=r)


class NoSpeculation(Collector):
    """TGI's summary of tokens skipped by speculation: there is none, so each request skips 0."""

    NAME = "tgi_request_skipped_tokens"
    QUANTILES = ("0", "0.5", "0.9", "0.95", "0.99", "0.999", "1")

    def __init__(self, registry: CollectorRegistry) -> None:
        self.n_requests = 0
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        metric = Metric(self.NAME, "Tokens skipped by speculation", "summary")
        for quantile in self.QUANTILES:
            metric.add_sample(self.NAME, {"quantile": quantile}, 0.0)
        metric.add_sample(f"{self.NAME}_sum", {}, 0.0)
        metric.add_sample(f"{self.NAME}_count", {}, float(self.n_requests))
        yield metric


class Relayed(Collector):
    """What the relay counts, read when the page is made."""

    NAMES = (
        ("takeovers", "farm_takeovers_total", "Requests that went on in another worker"),
        ("divergences", "farm_divergences_total", "Another token at a position already shown"),
        ("holes", "farm_holes_repaired_total", "Gaps filled from a journal"),
        ("cancelled", "farm_cancelled_total", "Requests whose client left"),
        ("resubmitted", "farm_resubmitted_total", "Requests submitted again with what was shown"),
    )

    def __init__(self, counts: RelayCounts, registry: CollectorRegistry) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        for attribute, name, text in self.NAMES:
            metric = Metric(name.removesuffix("_total"), text, "counter")
            metric.add_sample(name, {}, float(getattr(self._counts, attribute)))
            yield metric


class LaneView(NamedTuple):
    """One lane now; `oldest_s` is how long its first waiting request has waited."""

    model: str
    lane: str
    waiting: int
    running: int
    oldest_s: float


class FarmView(NamedTuple):
    """The farm as one gateway sees it now: every gateway says the same, so take the maximum and never a sum."""

    ready: int = 0
    unready: int = 0
    slots: int = 0
    free_slots: int = 0
    lanes: Sequence[LaneView] = ()
    broker_up: bool = False
    broker_bytes: int = 0
    broker_max_bytes: int = 0
    cold: int = 0


class View(Collector):
    """The last `FarmView`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.now = FarmView()
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        view = self.now
        states = [({"state": state}, getattr(view, state)) for state in ("ready", "cold", "unready")]
        yield _gauge("farm_workers", "Live workers by state; a cold one serves and compiles", states)
        yield _gauge("farm_slots", "Rows of all workers that serve", [({}, view.slots)])
        yield _gauge("farm_free_slots", "Those without a request", [({}, view.free_slots)])
        labelled = [({"model": lane.model, "lane": lane.lane}, lane) for lane in view.lanes]
        yield _gauge("farm_queue_waiting", "Requests that wait for a slot", [(labels, lane.waiting) for labels, lane in labelled])
        yield _gauge("farm_queue_running", "Requests that a worker holds", [(labels, lane.running) for labels, lane in labelled])
        yield _gauge("farm_queue_age_seconds", "How long the oldest waits", [(labels, lane.oldest_s) for labels, lane in labelled])
        yield _gauge("farm_broker_up", "Whether the broker answers", [({}, float(view.broker_up))])
        yield _gauge("farm_broker_memory_bytes", "Memory that the broker uses", [({}, view.broker_bytes)])
        yield _gauge("farm_broker_max_memory_bytes", "The most it may use, 0: no limit", [({}, view.broker_max_bytes)])


def _gauge(name: str, text: str, samples: Iterable[tuple[dict[str, str], float]]) -> Metric:
    metric = Metric(name, text, "gauge")
    for labels, value in samples:
        metric.add_sample(name, labels, float(value))
    return metric


def gateway(
    max_input_tokens: int, max_total_tokens: int, counts: RelayCounts, n_waiting: Callable[[], int], keys: Sequence[str] = ("anonymous",)
) -> GatewayMetrics:
    return GatewayMetrics(max_input_tokens, max_total_tokens, counts, n_waiting, keys)


def worker() -> WorkerMetrics:
    return WorkerMetrics()


def exposition(registry: CollectorRegistry, pages: Iterable[bytes] = ()) -> bytes:
    """Prometheus text of a registry and of other processes' pages; series that are in several are summed."""
    own = "".join(_lines(registry)).encode()
    others = list(pages)
    return merge([own, *others]) if others else own


def merge(pages: Iterable[bytes]) -> bytes:
    """One page of several: equal series are added up, each family is there once."""
    heads: dict[str, list[str]] = {}
    values: dict[str, dict[str, float]] = {}
    for page in pages:
        family = ""
        for line in page.decode().splitlines():
            if line.startswith("#"):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line:
                series, _, value = line.rpartition(" ")
                sums = values.setdefault(family, {})
                sums[series] = sums.get(series, 0.0) + float(value)
    return "".join(
        "".join(f"{line}\n" for line in head) + "".join(f"{series} {value}\n" for series, value in values.get(family, {}).items())
        for family, head in heads.items()
    ).encode()


def _lines(registry: CollectorRegistry) -> Iterator[str]:
    """TGI's counters have no `_total`, which the library adds, and nobody wants its `_created`."""
    for metric in registry.collect():
        name = f"{metric.name}_total" if metric.type == "counter" and not metric.name.startswith("tgi_") else metric.name
        yield f"# HELP {name} {metric.documentation}\n# TYPE {name} {metric.type}\n"
        for sample in metric.samples:
            if sample.name.endswith("_created"):
                continue
            series = name if metric.type == "counter" else sample.name
            labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
            yield f"{series}{{{labels}}} {sample.value}\n" if labels else f"{series} {sample.value}\n"


def _durations(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, f"{text}, seconds", buckets=DURATION_S, registry=registry)


def _durations_of(name: str, text: str, registry: CollectorRegistry, methods: Iterable[str]) -> dict[str, Histogram]:
    histogram = Histogram(name, f"{text}, seconds", ["method"], buckets=DURATION_S, registry=registry)
    return {method: histogram.labels(method) for method in methods}


def _each(counter: Counter, values: Iterable[str]) -> dict[str, Counter]:
    """The counter's children, one for each value its label may have."""
    return {value: counter.labels(value) for value in values}


def _hundredths(most: int) -> list[float]:
    return [i * most / 100 for i in range(1, 101)]
