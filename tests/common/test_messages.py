from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.messages import (
    VERSION,
    Card,
    Event,
    Failure,
    Finish,
    First,
    Flag,
    Frame,
    Malformed,
    NewerVersion,
    Params,
    Result,
    Submit,
    Worker,
    decode,
    decode_events,
    encode,
    encode_events,
    new_rid,
)

BOTH = int(Flag.FIRST | Flag.FINISH)
EVENT = Event(b"r" * 16, 5, 2, 7, -0.5, " é\u2028", BOTH, ((1, -1.5, "a"),), First(1.0, 2.5, 64), Finish("length", 3, 8.0))
FAILED = Event(b"r" * 16, 5, 3, -1, 0.0, "", int(Flag.ERROR), error=Failure("generation", "why"))
RECORDS = [
    Submit(VERSION, b"r" * 16, (1, 2), 5, Params(True, 0.7), ("x",), 2**64 - 1, 1000, gateway="g", prefix=(EVENT,), epoch_floor=9),
    Frame(VERSION, "w", 3, 2, 1, (EVENT, FAILED)),
    Worker(VERSION, "w", "m", "c", "cpu", 8, 512, (256, 512), "ready", 1, 7, 12.25),
    Card(VERSION, "m", "fp", {"tokenizer.json": b"{}"}, {"max_total_tokens": 512}),
    Result(VERSION, b"r" * 16, (EVENT,)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_round_trip(record: Submit) -> None:
    assert decode(type(record), encode(record)) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_later_releases_may_append_fields(record: Submit) -> None:
    longer = msgpack.packb((*record, "from the future"))
    assert decode(type(record), longer)._replace(v=VERSION) == record or isinstance(record, Frame | Result)
    assert type(decode(type(record), longer)) is type(record)


def test_missing_fields_take_their_defaults() -> None:
    assert decode(Submit, msgpack.packb((VERSION, b"r" * 16, [1], 5))) == Submit(VERSION, b"r" * 16, (1,), 5)
    assert Event.read((b"r" * 16, 1, 0, 7, -0.5, "a", 0, (), (1.0, 2.0, 3))).first == First(1.0, 2.0, 3)
    assert Event.read((b"r" * 16, 1, 0, 7, -0.5, "a", 0, (), (1.0, 2.0, 3, "artifact", "new"))).first == First(1.0, 2.0, 3, "artifact")


def test_journal_entries_hold_events_as_frames_do() -> None:
    assert decode_events(encode_events([EVENT, FAILED])) == [EVENT, FAILED]


def test_a_newer_version_is_told_apart_from_garbage() -> None:
    with pytest.raises(NewerVersion):
        decode(Submit, msgpack.packb((VERSION + 1, "anything")))


@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_a_record(data: bytes) -> None:
    for cls in (Submit, Frame, Card, Worker, Result):
        try:
            assert isinstance(decode(cls, data), cls)  # type: ignore[type-var]
        except (Malformed, NewerVersion):
            continue


SAMPLES = Path(__file__).parent.parent / "wire" / "v1"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_frozen_samples_of_version_1_are_still_read(record: Submit) -> None:
    """Written by the first release of this version; a change that misreads them needs a new version."""
    read = decode(type(record), (SAMPLES / f"{type(record).__name__.lower()}.bin").read_bytes())
    assert read == record


def test_the_frozen_journal_entry_is_still_read() -> None:
    assert decode_events((SAMPLES / "journal.bin").read_bytes()) == [EVENT, FAILED]


def test_request_ids_start_with_their_cell_and_do_not_repeat() -> None:
    rids = {new_rid(3) for _ in range(1000)}
    assert len(rids) == 1000
    assert {(len(rid), rid[0]) for rid in rids} == {(16, 3)}
