"""One generation from arrival to its log line: check, tokenize, submit, collect (design §3)."""

from __future__ import annotations

import secrets
from time import perf_counter
from typing import Any

from common.errors import invalid, overloaded
from common.messages import VERSION, Event, Flag, Submit, Want, new_rid
from common.shapes import lane_for
from gateway import admission, sse
from gateway.headers import Timing
from gateway.live import Live
from gateway.relay import ServedModel
from gateway.schemas.tgi import GenerateParameters, GenerateRequest
from gateway.service import Service
from gateway.tokenizing import Encoder


class Generation:
    """Collects the events of one request; the caller holds a permit from `start` to the end."""

    def __init__(self, service: Service, request: GenerateRequest, request_id: str) -> None:
        self.service = service
        self.inputs = request.inputs
        self.parameters = request.parameters
        self.request_id = request_id
        self.limits = service.limits()
        self.events: list[Event] = []
        self.special_ids: frozenset[int] = frozenset()
        self.n_input = 0
        self.seed = 0
        self.live: Live | None = None
        self._arrived_s = perf_counter()
        self._queued_s = self._arrived_s
        self._waited_ms = 0.0
        self._first_s = 0.0
        service.metrics.requests.inc()

    def check_before_permit(self, stream: bool) -> None:
        """Raises what TGI says before it looks at the load."""
        rules = admission.STREAM_RULES if stream else admission.BEST_OF_RULES
        admission.check(rules, self.parameters, self.limits)

    async def start(self) -> Live:
        """Checks and queues the request; raises `RequestError`."""
        admission.check_request(self.inputs, self.parameters, self.limits)
        model = self.service.model()
        encoder = await self.service.encoders.of(model.card)
        submit, lane = await self._prepare(model, encoder)
        numbers = self.service.metrics
        numbers.input_tokens.observe(self.n_input)
        numbers.max_new_tokens.observe(submit.n_max_new)
        self._queued_s = perf_counter()
        self.live = await self.service.relay.submit(submit, lane, model)
        return self.live

    async def _prepare(self, model: ServedModel, encoder: Encoder) -> tuple[Submit, int]:
        parameters = self.parameters
        ids = await encoder.encode(self.inputs, parameters.truncate)
        self.n_input = len(ids)
        self.special_ids = encoder.special_ids
        admission.check_lengths(self.n_input, parameters.max_new_tokens, self.limits)
        admission.check((admission.GRAMMAR_RULE,), parameters, self.limits)
        lane = self._lane(model)
        n_max_new = parameters.max_new_tokens or min(lane, self.limits.max_total_tokens) - self.n_input
        self.seed = secrets.randbits(64) if parameters.seed is None else parameters.seed
        submit = Submit(
            VERSION,
            new_rid(),
            tuple(ids),
            n_max_new,
            parameters.params(),
            parameters.stop,
            self.seed,
            want=_want(self.service, model, parameters),
        )
        return submit, lane

    def _lane(self, model: ServedModel) -> int:
        lanes = model.lanes
        if not lanes:
            raise overloaded(5.0)
        lane = lane_for(self.n_input, self.parameters.max_new_tokens, lanes)
        if lane is None:
            raise admission.never_fits(self.n_input, self.parameters.max_new_tokens or 1, max(lanes))
        return lane

    def add(self, event: Event) -> None:
        """Takes the next event."""
        if not self.events:
            self._first_s = perf_counter()
        if event.first is not None and not self.events:
            self._waited_ms = event.first.waited_ms
        self.events.append(event)

    @property
    def text(self) -> str:
        """What was generated, without special tokens (TGI reference §2.2)."""
        return "".join(event.text for event in self.events if not event.flags & Flag.SPECIAL)

    @property
    def samples(self) -> bool:
        return self.parameters.params().samples

    @property
    def finish_reason(self) -> str:
        """Of a generation that has ended."""
        finish = self.events[-1].finish
        assert finish is not None
        return finish.reason

    def token(self, event: Event) -> dict[str, Any]:
        special = bool(event.flags & Flag.SPECIAL)
        return {"id": event.token, "text": event.text, "logprob": sse.float32(event.logprob), "special": special}

    def top_tokens(self, event: Event) -> list[dict[str, Any]]:
        return [
            {"id": token, "text": text, "logprob": sse.float32(logprob), "special": token in self.special_ids}
            for token, logprob, text in event.top
        ]

    def prefill(self) -> list[dict[str, Any]]:
        """Prompt tokens; the first has no logprob."""
        rows = self.events[0].prefill if self.events else ()
        return [{"id": token, "text": text, "logprob": sse.float32(logprob)} for token, logprob, text in rows]

    def timing(self) -> Timing:
        """Of a request that ends now."""
        total_s = perf_counter() - self._arrived_s
        first_s = self._first_s - self._arrived_s if self.events else total_s
        return Timing(total_s, self._queued_s - self._arrived_s, self._waited_ms / 1000, self.n_input, len(self.events), first_s)


def _want(service: Service, model: ServedModel, parameters: GenerateParameters) -> int:
    """A seed asks for takeovers that change nothing (design §7)."""
    capabilities = model.capabilities
    if "penalties" not in capabilities:
        for name, neutral in (("repetition_penalty", 1.0), ("frequency_penalty", 0.0)):
            if getattr(parameters, name) not in (None, neutral):
                raise invalid(f"`{name}` is not supported by the workers of this model")
    want = Want(0) if parameters.seed is None else Want.EXACT
    if parameters.decoder_input_details and service.settings.enable_prefill_logprobs and "prompt_logprobs" in capabilities:
        want |= Want.PREFILL_LOGPROBS
    return int(want)
