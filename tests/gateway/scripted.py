"""A worker that speaks the farm's real protocol over a real server and says exactly what a test tells it to say.

The gateway under test is the real process; only the device is replaced, so that text, logprobs and errors are known.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from common import registry
from common.broker import Batch, Broker, Ended, connect
from common.keys import Cell, lane_name
from common.messages import Card, Event, Failure, Finish, First, Flag, Frame, Submit, Worker, decode, encode, encode_events

LENGTH = 128
MAX_INPUT = 100
LEASE_MS = 10_000


def tokenizer_json() -> bytes:
    """A byte-level tokenizer that adds `<s>` before each prompt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False)  # type: ignore[call-arg]
    tokenizer.train_from_iterator(["what is deep learning the quick brown fox"] * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])  # type: ignore[assignment]
    return tokenizer.to_str().encode()


CHAT_TEMPLATE = (
    "{{ bos_token }}{% if tools %}[tools]{% endif %}{{ style or '' }}"
    "{% for message in messages %}"
    "{% if message.role == 'critic' %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ message.role[0] }}:{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments.x }}){% endfor %}"
    "{% if message.tool_call_id %}#{{ message.tool_call_id }}{% endif %};"
    "{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)

FILES = {
    "tokenizer.json": tokenizer_json(),
    "tokenizer_config.json": json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}).encode(),
}


@dataclass(frozen=True)
class Said:
    """One token to say."""

    text: str
    token: int = 7
    logprob: float = -0.5
    special: bool = False
    top: tuple[tuple[int, float, str], ...] = ()
    prefill: tuple[tuple[int, float, str], ...] = ()
    reason: str = ""
    error: Failure | None = None


def count(submit: Submit) -> list[Said]:
    """Numbers as text, up to the limit."""
    said = [Said(f" {n}", token=10 + n) for n in range(submit.n_max_new)]
    return [*said[:-1], Said(said[-1].text, token=said[-1].token, reason="length")]


Script = Callable[[Submit], Sequence[Said]]


@dataclass
class Row:
    submit: Submit
    epoch: int
    waited_ms: int
    said: list[Said]
    gateways: tuple[str, ...]
    pos: int = 0
    cancelled: bool = False


@dataclass
class ScriptedWorker:
    """Runs in a thread of the test. `script` answers, `go` lets it, the first `n_free` tokens come anyhow; `seen` and `cancelled` tell."""

    url: str
    farm: str
    capabilities: tuple[str, ...] = ("seed", "logprobs", "prompt_logprobs", "penalties")
    batch_size: int = 8
    metrics_url: str = ""
    host: str = ""
    script: Script = count
    seen: list[Submit] = field(default_factory=list)
    cancelled: list[bytes] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    n_free: int = 0
    id: str = "scripted-1"
    model: str = "org/tiny"

    def start(self) -> ScriptedWorker:
        self.go.set()
        self._stop = threading.Event()
        self._rows: dict[bytes, Row] = {}
        self._sent: dict[str, int] = {}
        self._step = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def running(self) -> int:
        return len(self._rows)

    async def _run(self) -> None:
        redis = connect(self.url)
        card = Card(
            1, self.model, f"fp-{self.model}", FILES, {"max_input_tokens": MAX_INPUT, "max_total_tokens": LENGTH, "vocab_size": 300},
            self.capabilities, "abc123", "text-generation",
        )  # fmt: skip
        self._broker = Broker(redis, Cell(self.farm, card.model, card.fingerprint))
        await self._broker.join(self.id, LEASE_MS)
        digest = await registry.publish(redis, self.farm, card)
        record = Worker(
            1, self.id, card.model, digest, "scripted", self.batch_size, LENGTH, (LENGTH,), "ready", 0, 0,
            host=self.host, capabilities=self.capabilities, metrics_url=self.metrics_url,
        )  # fmt: skip
        published_s = 0.0
        while not self._stop.is_set():
            if monotonic() - published_s > 1:
                published_s = monotonic()
                await self._broker.redis.set(self._broker.cell.record(record.id), encode(record), px=5000)
            await self._pull()
            await self._say()
            if not self._rows or not self.go.is_set():
                await asyncio.sleep(0.002)
        await self._broker.release(self.id, "clean")
        await redis.aclose()

    async def _pull(self) -> None:
        room = self.batch_size - len(self._rows)
        pulled = await self._broker.pull(
            self.id, may_expire=False, held=len(self._rows), minimum=0, maximum=room, lanes=[lane_name(LENGTH)]
        )
        for delivery in pulled.deliveries:
            if delivery.kind != "new":
                continue
            submit = decode(Submit, delivery.message)
            self.seen.append(submit)
            self._rows[submit.rid] = Row(submit, delivery.epoch, delivery.waited_ms, list(self.script(submit)), delivery.gateways)

    async def _say(self) -> None:
        going = self.go.is_set()
        spoken = [(row, self._event(row)) for row in self._rows.values() if going or row.pos < self.n_free]
        adopted = tuple(row.submit.rid for row, event in spoken if event.pos == 0)
        self._step += 1
        frames = tuple(self._frame(gateway, [e for row, e in spoken if gateway in row.gateways]) for gateway in self._gateways(spoken))
        events = [event for _, event in spoken]
        batch = Batch(self._step, self._step - 1, 0, encode_events(events), 0, b"", adopted, (), frames)
        flushed = await self._broker.flush(self.id, LEASE_MS, batch)
        ended = [row for row, event in spoken if event.flags & (Flag.FINISH | Flag.ERROR)]
        for letter in flushed.mail:
            rid = bytes.fromhex(letter.split()[1])
            if rid in self._rows and rid not in self.cancelled:
                self.cancelled.append(rid)
                ended.append(self._rows[rid])
        if ended:
            await self._broker.finish(self.id, [Ended(row.submit.rid, row.epoch) for row in ended])
            for row in ended:
                self._rows.pop(row.submit.rid, None)

    def _gateways(self, spoken: Sequence[tuple[Row, Event]]) -> list[str]:
        return sorted({gateway for row, _ in spoken for gateway in row.gateways})

    def _frame(self, gateway: str, events: Sequence[Event]) -> tuple[str, bytes]:
        frame = Frame(1, self.id, self._step, self._sent.get(gateway, 0), 0, tuple(events))
        self._sent[gateway] = self._step
        return gateway, encode(frame)

    def _event(self, row: Row) -> Event:
        said = row.said[row.pos]
        flags = Flag(0)
        first = finish = None
        if row.pos == 0:
            flags |= Flag.FIRST
            first = First(row.waited_ms, 1.0, 64)
        if said.special:
            flags |= Flag.SPECIAL
        if said.reason:
            flags |= Flag.FINISH
            finish = Finish(said.reason, row.pos + 1, 1.0)
        if said.error:
            flags |= Flag.ERROR
        event = Event(
            row.submit.rid, row.epoch, row.pos, said.token, said.logprob, said.text, int(flags), said.top, first, finish, said.error,
            said.prefill,
        )  # fmt: skip
        row.pos += 1
        return event
