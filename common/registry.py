"""Which models a farm serves: workers publish a card, gateways read it and never ask a hub."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from redis.asyncio import Redis

from common import keys
from common.messages import Card, decode, encode


async def publish(redis: Redis, farm: str, card: Card) -> str:
    """Stores a card under its digest and names it in the registry; returns the digest."""
    data = encode(card)
    digest = sha256(data).hexdigest()[:16]
    await redis.set(keys.card(farm, digest), data)
    await redis.execute_command("HSET", keys.models(farm), card.model, digest)
    return digest


async def read(redis: Redis, farm: str, known: Mapping[str, Card]) -> dict[str, Card]:
    """All cards by digest, in order of the served name; `known` ones are not read again."""
    names: dict[bytes, bytes] = await redis.execute_command("HGETALL", keys.models(farm))
    cards: dict[str, Card] = {}
    for _, digest in sorted((name.decode(), digest.decode()) for name, digest in names.items()):
        data = None if digest in known else await redis.get(keys.card(farm, digest))
        if digest in known:
            cards[digest] = known[digest]
        elif data is not None:
            cards[digest] = decode(Card, data)
    return cards
