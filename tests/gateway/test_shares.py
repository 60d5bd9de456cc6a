from __future__ import annotations

import asyncio

import pytest

from common.errors import RequestError
from gateway.shares import Share

pytestmark = pytest.mark.anyio


async def use(share: Share, order: list[str], name: str, end: asyncio.Event, n: int = 1) -> None:
    async with share.take(n):
        order.append(name)
        await end.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_rest_waits_in_order_and_more_than_that_is_refused() -> None:
    share, order = Share(max_running=2, max_queued=2), list[str]()
    ends = {name: asyncio.Event() for name in "abcd"}
    tasks = {name: asyncio.create_task(use(share, order, name, ends[name])) for name in "abcd"}
    await settle()
    assert (order, share.running, share.queued) == (["a", "b"], 2, 2)
    with pytest.raises(RequestError) as caught:
        async with share.take():
            raise AssertionError("a fifth one")
    assert (caught.value.kind, caught.value.status) == ("overloaded", 429)
    ends["b"].set()
    await settle()
    assert (order, share.queued) == (["a", "b", "c"], 1)
    for end in ends.values():
        end.set()
    await asyncio.gather(*tasks.values())
    assert (order, share.running, share.queued) == (["a", "b", "c", "d"], 0, 0)


async def test_many_at_once_are_not_overtaken_and_who_leaves_makes_room() -> None:
    share, order = Share(max_running=2), list[str]()
    ends = {name: asyncio.Event() for name in "abc"}
    first = asyncio.create_task(use(share, order, "a", ends["a"]))
    two = asyncio.create_task(use(share, order, "b", ends["b"], n=2))
    last = asyncio.create_task(use(share, order, "c", ends["c"]))
    await settle()
    assert (order, share.queued) == (["a"], 3)
    two.cancel()
    await settle()
    assert (order, share.queued, share.running) == (["a", "c"], 0, 2)
    ends["a"].set()
    ends["c"].set()
    await asyncio.gather(first, last)
    assert share.running == 0


async def test_leaving_at_the_moment_of_admission_gives_the_room_back() -> None:
    share, order = Share(max_running=1), list[str]()
    async with share.take():
        second = asyncio.create_task(use(share, order, "b", asyncio.Event()))
        await settle()
    second.cancel()
    await asyncio.wait((second,))
    assert (order, share.running, share.queued) == ([], 0, 0)


async def test_more_than_ever_fits_is_a_fault_of_the_request() -> None:
    with pytest.raises(RequestError) as caught:
        async with Share(max_running=2).take(3):
            raise AssertionError("three")
    assert caught.value.status == 422
