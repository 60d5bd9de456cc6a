"""Routes for people, balancers and monitoring (TGI reference §1.4–§1.6, §1.14; design §9)."""

from __future__ import annotations

from common import metrics
from common.errors import RequestError
from gateway import overview
from gateway.call import Call
from gateway.release import TGI_VERSION
from gateway.scrape import local_pages
from gateway.service import N_THREADS


async def health(call: Call) -> None:
    """Can the farm serve now?"""
    if not call.service.relay.ready():
        raise RequestError("healthcheck", "unhealthy")
    await call.answer(200)


async def live(call: Call) -> None:
    """Is this process alive?"""
    await call.answer(200)


async def accept(call: Call) -> None:
    """May a balancer send new connections here?"""
    await call.answer(503 if call.service.draining else 200)


async def info(call: Call) -> None:
    service = call.service
    settings, limits, model = service.settings, service.limits(), service.relay.model()
    await call.answer_json(
        {
            "model_id": settings.name if model is None else model.name,
            "model_sha": (model.card.revision if model else "") or None,
            "model_pipeline_tag": (model.card.pipeline_tag if model else "") or None,
            "max_concurrent_requests": service.max_concurrent_requests(),
            "max_best_of": limits.max_best_of,
            "max_stop_sequences": limits.max_stop_sequences,
            "max_input_tokens": limits.max_input_tokens,
            "max_total_tokens": limits.max_total_tokens,
            "validation_workers": N_THREADS,
            "max_client_batch_size": settings.max_client_batch_size,
            "router": "text-generation-router",
            "version": TGI_VERSION,
            "sha": None,
            "docker_label": None,
        }
    )


async def models(call: Call) -> None:
    names = [model.name for model in call.service.relay.models()] or [call.service.settings.name]
    await call.answer_json({"object": "list", "data": [_described(name) for name in names]})


async def model(call: Call) -> None:
    """One of the served models; any other name is 404 here, though requests may use it."""
    name = call.scope["path_params"]["id"]
    if name not in ([model.name for model in call.service.relay.models()] or [call.service.settings.name]):
        raise RequestError("not_found", "There is no such model")
    await call.answer_json(_described(name))


def _described(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": name}


async def prometheus(call: Call) -> None:
    call.service.metrics.view.now = await overview.view(call.service.relay)
    page = metrics.exposition(call.service.metrics.registry, await local_pages(call.service.relay.workers()))
    await call.answer(200, page, [(b"content-type", metrics.CONTENT_TYPE.encode())])
