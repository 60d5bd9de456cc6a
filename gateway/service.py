"""What all routes of one gateway process share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from common import metrics
from common.config import Settings
from common.errors import overloaded
from gateway.admission import Limits, Permits
from gateway.auth import Keys, keys_of
from gateway.cell import LEAST_WAITING
from gateway.per_model import PerModel
from gateway.relay import Relay, ServedModel
from gateway.shares import Share
from gateway.templating import ChatTemplate
from gateway.token_ids import IdEncoder, encoder_of
from gateway.tokenizing import Encoder

N_THREADS = 2

UNKNOWN_LIMITS = (4095, 4096)
"""TGI's defaults, until a worker has published a model (tokens)."""


@dataclass
class Service:
    """One gateway: its settings, its relay and what it counts."""

    settings: Settings
    relay: Relay
    permits: Permits = field(init=False)
    keys: Keys = field(init=False)
    shares: dict[str, Share] = field(init=False)
    encoders: PerModel[Encoder | IdEncoder] = field(init=False)
    templates: PerModel[ChatTemplate] = field(init=False)
    metrics: metrics.GatewayMetrics = field(init=False)
    draining: bool = False

    def __post_init__(self) -> None:
        self.permits = Permits(self.settings.max_concurrent_requests)
        self.keys = keys_of(self.settings.api_key, self.settings.api_keys_file)
        self.threads = ThreadPoolExecutor(N_THREADS, "prompts")
        self.encoders = PerModel(lambda card: encoder_of(card, self.threads), self.threads)
        self.templates = PerModel(lambda card: ChatTemplate(card.files), self.threads)
        self.shares = {key.name: Share(key.max_running, key.max_queued) for key in self.keys.all}
        self.metrics = metrics.gateway(*UNKNOWN_LIMITS, self.relay.counts, self.relay.n_waiting, tuple(self.shares))
        self.relay.on_model = self._prepare
        self.compute_type = self.settings.compute_type or self.settings.backend

    def max_concurrent_requests(self) -> int:
        """The number in force: this gateway's permits, or else how many requests may wait in the farm."""
        model = self.relay.model()
        if self.permits.limit is not None or model is None:
            return self.permits.limit or LEAST_WAITING
        return sum(model.cell.max_waiting(lane) for lane in model.lanes) or LEAST_WAITING

    def model(self, name: str | None = None) -> ServedModel:
        """The model of that name, or another; raises 429 when there is none yet."""
        model = self.relay.model(name)
        if model is None:
            raise overloaded(5.0)
        return model

    def limits(self, name: str | None = None) -> Limits:
        """What is checked now; the lengths are the served model's."""
        model = self.relay.model(name)
        n_input, n_total = UNKNOWN_LIMITS if model is None else (model.max_input_tokens, model.max_total_tokens)
        s = self.settings
        return Limits(s.max_best_of, s.max_stop_sequences, s.max_top_n_tokens, n_input, n_total)

    def _prepare(self, model: ServedModel) -> None:
        """A new model's tokenizer and template are made before its first request needs it."""
        self.encoders.prepare(model.card)
        self.templates.prepare(model.card)
        self.metrics.fit(model.max_input_tokens, model.max_total_tokens)
