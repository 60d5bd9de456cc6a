"""One generation from arrival to its log line: check, tokenize, submit, collect (design §3)."""

from __future__ import annotations

import secrets
from time import perf_counter
from typing import Any

from common.errors import invalid, overloaded
from common.messages import VERSION, Event, Flag, Submit, Want, new_rid
from common.shapes import lane_for
from gateway import admission, sse
from gateway.call import Call
from gateway.capabilities import require_supported
from gateway.headers import Timing
from gateway.live import Live
from gateway.relay import ServedModel
from gateway.schemas.completions import Prompt
from gateway.schemas.tgi import GenerateParameters
from gateway.service import Service
from gateway.session import Session
from gateway.token_ids import IdEncoder, require_known, require_tokenizer
from gateway.tokenizing import Encoder


class Generation:
    """Collects the events of one request; the caller holds a permit from `start` to the end.

    `special_tokens`: the tokenizer adds its own to a prompt of text. `wants_prompt`: log-probabilities of the prompt or an error.
    """

    def __init__(
        self,
        call: Call,
        prompt: Prompt,
        parameters: GenerateParameters,
        *,
        model: str | None = None,
        special_tokens: bool = True,
        wants_prompt: bool = False,
    ) -> None:
        self.service = service = call.service
        self.key = call.key
        self.inputs = prompt if isinstance(prompt, str) else ""
        self.parameters = parameters
        self.request_id = call.request_id
        self.limits = service.limits(model)
        self.events: list[Event] = []
        self.input_ids: tuple[int, ...] = () if isinstance(prompt, str) else prompt
        self._model = model
        self._special_tokens = special_tokens
        self._wants_prompt = wants_prompt
        self.special_ids: frozenset[int] = frozenset()
        self.joint = ""
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

    async def start(self, session: Session | None = None) -> Live:
        """Checks and queues the request, or joins it where it runs; raises `RequestError`."""
        session = session or Session(rid=new_rid())
        admission.check_request(self.inputs or self.input_ids, self.parameters, self.limits)
        model = self.service.model(self._model)
        encoder = await self.service.encoders.of(model.card)
        submit, lane = await self._prepare(model, encoder, session)
        numbers = self.service.metrics
        numbers.input_tokens.observe(self.n_input)
        numbers.max_new_tokens.observe(submit.n_max_new)
        self._queued_s = perf_counter()
        if session.resumes:
            self.live = await self.service.relay.resume(session.rid, session.caller)
        else:
            self.live = await self.service.relay.submit(submit, lane, model, session.digest)
        self.seed = self.live.submit.seed
        return self.live

    async def _prepare(self, model: ServedModel, encoder: Encoder | IdEncoder, session: Session) -> tuple[Submit, int]:
        parameters, n_vocabulary = self.parameters, model.card.limits.get("vocab_size")
        for name in ("stop", "grammar"):
            if getattr(parameters, name):
                require_tokenizer(model.card, f"`{name}`")
        if self.input_ids:
            require_known(self.input_ids, n_vocabulary, "`prompt`")
        else:
            self.input_ids = tuple(await encoder.encode(self.inputs, parameters.truncate, self._special_tokens))
        require_known([token for token, _ in parameters.logit_bias], n_vocabulary, "`logit_bias`")
        self.n_input = len(self.input_ids)
        self.special_ids, self.joint = encoder.special_ids, encoder.joint
        admission.check_lengths(self.n_input, parameters.max_new_tokens, self.limits)
        self.inputs = self.inputs or encoder.decode(self.input_ids)
        admission.check((admission.GRAMMAR_RULE,), parameters, self.limits)
        lane = self._lane(model)
        n_max_new = parameters.max_new_tokens or min(lane, self.limits.max_total_tokens) - self.n_input
        self.seed = secrets.randbits(64) if parameters.seed is None else parameters.seed
        submit = Submit(
            VERSION,
            session.rid,
            self.input_ids,
            n_max_new,
            parameters.params(),
            parameters.stop,
            self.seed,
            want=_want(self.service, model, parameters, self._wants_prompt) | session.want,
            ttl_ms=session.ttl_ms,
            caller=session.caller,
            tenant=self.key.name,
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
    def prompt(self) -> str:
        """As it stands before what is generated."""
        return self.inputs + self.joint

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

    @property
    def mean_logprob(self) -> float:
        """By which `best_of` chooses (TGI reference §1.1.5)."""
        return sum(event.logprob for event in self.events) / max(1, len(self.events))

    def timing(self) -> Timing:
        """Of a request that ends now."""
        total_s = perf_counter() - self._arrived_s
        first_s = self._first_s - self._arrived_s if self.events else total_s
        return Timing(total_s, self._queued_s - self._arrived_s, self._waited_ms / 1000, self.n_input, len(self.events), first_s)


def _want(service: Service, model: ServedModel, parameters: GenerateParameters, wants_prompt: bool) -> int:
    """A seed asks for takeovers that change nothing (design §7)."""
    capabilities = model.capabilities
    require_supported(parameters, capabilities, model.card.limits.get("max_top_k", 0))
    want = Want(0) if parameters.seed is None else Want.EXACT
    available = service.settings.enable_prefill_logprobs and "prompt_logprobs" in capabilities
    if wants_prompt and not available:
        raise invalid("`echo` with `logprobs` needs --enable-prefill-logprobs in gateways and workers")
    if available and (wants_prompt or parameters.decoder_input_details):
        want |= Want.PREFILL_LOGPROBS
    return int(want)
