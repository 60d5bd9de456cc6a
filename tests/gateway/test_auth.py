from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import StartError
from gateway.auth import ANYBODY, Key, Keys, keys_of

ONE = Keys([Key("default", "Secret-Kéy".encode())])


def test_without_a_key_everybody_may_enter() -> None:
    for header in (None, b"", b"Bearer ", b"Bearer -", b"Basic x", b"\xff"):
        assert keys_of(None, None).admits(header) is ANYBODY


def test_the_key_is_compared_exactly() -> None:
    assert ONE.admits("Bearer Secret-Kéy".encode()) and ONE.admits("bearer Secret-Kéy".encode())
    for wrong in ("Bearer secret-kéy", "Bearer Secret-Ké", "Bearer Secret-Kéyy", "Secret-Kéy", "Basic Secret-Kéy", "Bearer", ""):
        assert ONE.admits(wrong.encode()) is None
    assert ONE.admits(None) is None


@pytest.mark.parametrize("header", [b"Bearer \xff\xfe", b"Bearer " + b"x" * 100_000])
def test_odd_headers_are_only_wrong(header: bytes) -> None:
    assert ONE.admits(header) is None


def test_a_file_names_keys_and_what_they_may_run(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# teams\n\nteam-a  sk-1 running=8 queued=32\n team.b sk-2\nteam_c sk-3 queued=0\n")
    keys = keys_of("sk-0", str(file))
    assert [(key.name, key.max_running, key.max_queued) for key in keys.all] == [
        ("default", None, None), ("team-a", 8, 32), ("team.b", None, None), ("team_c", None, 0),
    ]  # fmt: skip
    for number, name in enumerate(("default", "team-a", "team.b", "team_c")):
        admitted = keys.admits(b"Bearer sk-%d" % number)
        assert admitted is not None and admitted.name == name
    assert keys.admits(b"Bearer sk-4") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("team", "line 1, allowed is NAME KEY"),
        ("\nteam a b", "line 2, allowed is NAME KEY"),
        ("te/am sk-1", "allowed is NAME KEY"),
        ("default sk-1", "allowed is NAME KEY"),
        ("a sk-1 running=x", "allowed is NAME KEY"),
        ("a sk-1 running=0", "running=0, allowed is at least 1"),
        ("a sk-1\na sk-2", "the same name is there twice"),
        ("a sk-1\nb sk-1", "the same key is there twice"),
    ],
)
def test_a_wrong_file_stops_the_start_without_showing_a_key(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(StartError, match=reason) as caught:
        keys_of(None, str(file))
    assert "sk-" not in str(caught.value)
    with pytest.raises(StartError, match="No such file"):
        keys_of(None, str(tmp_path / "none"))
