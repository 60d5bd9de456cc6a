"""How a generation ended: its metrics and its one log line, which never holds a prompt or an answer (design §9)."""

from __future__ import annotations

import logging

from common.errors import RequestError
from gateway.call import Call
from gateway.generation import Generation
from gateway.headers import Timing

log = logging.getLogger("gateway.request")

FAILURES = {
    "validation": "validation",
    "overloaded": "overloaded",
    "template_error": "template",
    "incomplete_generation": "incomplete",
    "incomplete_generation_stream": "incomplete",
}
"""error_type → the label of `tgi_request_failure`; everything else failed while it was generated."""


CLIENTS_OWN = ("validation", "template")
"""Failures that no farm could serve: they are no part of the share of good requests."""


def succeeded(generation: Generation) -> None:
    timing = generation.timing()
    numbers = generation.service.metrics
    numbers.successes.inc()
    numbers.skipped.n_requests += 1
    numbers.duration_s.observe(timing.total_s)
    numbers.validation_s.observe(timing.validation_s)
    numbers.queue_s.observe(timing.queue_s)
    numbers.inference_s.observe(timing.inference_s)
    numbers.per_token_s.observe(timing.per_token_s)
    numbers.generated_tokens.observe(timing.n_generated)
    numbers.first_token_s.observe(timing.first_token_s)
    if timing.n_generated > 1:
        numbers.gap_s.observe(timing.gap_s)
    numbers.good["yes" if _as_promised(generation, timing) else "no"].inc()
    _log(generation, "Success")


def failed(generation: Generation, error: RequestError) -> None:
    numbers, kind = generation.service.metrics, FAILURES.get(error.kind, "generation")
    numbers.failures[kind].inc()
    if kind not in CLIENTS_OWN:
        numbers.good["no"].inc()
    _log(generation, "Failed", error_type=error.kind, status=error.status)


def dropped(generation: Generation) -> None:
    """The client left."""
    generation.service.metrics.failures["dropped"].inc()
    _log(generation, "Dropped")


def refused(call: Call, error: RequestError) -> None:
    """A request that never became a generation, as when its chat template refuses it."""
    call.service.metrics.requests.inc()
    call.service.metrics.failures[FAILURES.get(error.kind, "generation")].inc()
    log.info("Failed", extra={"x_request_id": call.request_id, "error_type": error.kind, "status": error.status})


def _count_tokens(generation: Generation) -> None:
    """What a key used, however it ended; prompts count once they are queued."""
    tokens, name = generation.service.metrics.tokens, generation.key.name
    if generation.live is not None:
        tokens[name, "prompt"].inc(generation.n_input)
        tokens[name, "generated"].inc(len(generation.events))


def _as_promised(generation: Generation, timing: Timing) -> bool:
    settings = generation.service.settings
    return 1000 * timing.first_token_s <= settings.slo_ttft_ms and 1000 * timing.gap_s <= settings.slo_itl_ms


def _log(generation: Generation, message: str, **fields: object) -> None:
    """TGI's fields, and who served it."""
    _count_tokens(generation)
    timing, live = generation.timing(), generation.live
    fields |= {
        "x_request_id": generation.request_id,
        "rid": live.submit.rid.hex() if live else None,
        "compute_type": generation.service.compute_type,
        "total_time": _ms(timing.total_s),
        "validation_time": _ms(timing.validation_s),
        "queue_time": _ms(timing.queue_s),
        "inference_time": _ms(timing.inference_s),
        "time_per_token": _ms(timing.per_token_s),
        "seed": generation.seed if live and generation.samples else None,
        "tokens": timing.n_generated,
        "worker": live.worker if live else None,
        "takeovers": live.takeovers if live else 0,
    }
    log.info(message, extra=fields)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3f}ms"
