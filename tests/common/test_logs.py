from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from common.config import Settings
from common.logs import start_logs


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    yield
    root.level, root.handlers[:] = before


def started(**env: str) -> io.StringIO:
    out = io.StringIO()
    start_logs(Settings.from_env({"API_KEY": 'can"ary', "HF_TOKEN": "hf_canary", **env}), out)
    return out


@pytest.mark.parametrize("json_output", ["true", "false"])
def test_secrets_are_hidden_in_messages_arguments_fields_and_tracebacks(json_output: str) -> None:
    out = started(JSON_OUTPUT=json_output)
    error = ValueError('bad key can"ary')
    try:
        raise error
    except ValueError:
        logging.getLogger("gateway.auth").exception("token %s", "hf_canary", extra={"key": 'can"ary'})
    assert out.getvalue().count("***") == 3
    assert "canary" not in out.getvalue()
    assert 'can"ary' not in out.getvalue()
    assert "ValueError" in out.getvalue()


def test_a_json_line_has_the_shape_of_tgi() -> None:
    out = started(JSON_OUTPUT="1")
    logging.getLogger("workers").info("Connected", extra={"rid": "ab"})
    line = json.loads(out.getvalue())
    assert (line["level"], line["target"], line["fields"]) == ("INFO", "workers", {"message": "Connected", "rid": "ab"})
    assert line["timestamp"].endswith("Z")


def test_a_text_line_ends_with_its_fields() -> None:
    out = started()
    logging.getLogger("workers").info("Connected", extra={"rid": "ab"})
    assert out.getvalue().endswith(" INFO workers: Connected rid=ab\n")


@pytest.mark.parametrize(("level", "n_lines"), [("error", 0), ("warn", 1), ("info", 2), ("debug", 3), ("trace", 4)])
def test_the_level_is_about_our_own_lines(level: str, n_lines: int) -> None:
    out = started(LOG_LEVEL=level)
    logging.getLogger("common").warning("ours")
    logging.getLogger("common").info("ours")
    logging.getLogger("common").debug("ours")
    logging.getLogger("another.library").debug("theirs")
    assert len(out.getvalue().splitlines()) == n_lines
