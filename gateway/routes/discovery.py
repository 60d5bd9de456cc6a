"""What operators' tools ask inside the network: Prometheus' HTTP service discovery and an overview as JSON (design §9)."""

from __future__ import annotations

from urllib.parse import urlsplit

from gateway import overview
from gateway.call import Call


async def workers(call: Call) -> None:
    """`[{"targets": ["host:port"], "labels": {…}}]`, one for each live worker whose metrics have an address (Prometheus `http_sd`)."""
    found = [
        {
            "targets": [urlsplit(worker.metrics_url).netloc],
            "labels": {"worker": worker.id, "model": worker.model, "backend": worker.backend, "host": worker.host},
        }
        for worker in call.service.relay.workers()
        if worker.metrics_url.startswith("http")
    ]
    await call.answer_json(found)


async def farm(call: Call) -> None:
    """This gateway, the models, the workers and the lanes, as they are now."""
    relay = call.service.relay
    seen = await overview.view(relay)
    await call.answer_json(
        {
            "gateway": {"id": relay.gateway, "waiting": relay.n_waiting(), "draining": call.service.draining},
            "broker": {"up": seen.broker_up, "used_bytes": seen.broker_bytes, "max_bytes": seen.broker_max_bytes},
            "models": [
                {
                    "name": model.name,
                    "fingerprint": model.card.fingerprint,
                    "ready": model.cell.ready(),
                    "max_input_tokens": model.max_input_tokens,
                    "max_total_tokens": model.max_total_tokens,
                }
                for model in relay.models()
            ],
            "workers": [worker._asdict() for worker in relay.workers()],
            "lanes": [lane._asdict() for lane in seen.lanes],
        }
    )
