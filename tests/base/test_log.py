import hashlib
import hmac
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import assume, given
from hypothesis import strategies as st

from postroom.base import log


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    log.configure("debug", "json", stream)
    yield stream
    structlog.reset_defaults()
    root.handlers, root.level = handlers, level


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_what_the_schema_names(out: io.StringIO) -> None:
    log.get("servers.smtp").info("inbound_accepted", message_id="msg_1", bytes=4500, address_ph="00ff", ok=True)
    (line,) = lines(out)
    assert line.pop("ts").endswith("Z")
    assert line == {
        "event": "inbound_accepted",
        "level": "info",
        "part": "servers.smtp",
        "message_id": "msg_1",
        "bytes": 4500,
        "address_ph": "00ff",
        "ok": True,
    }


@pytest.mark.parametrize(
    "field",
    [
        *("address", "from", "to", "subject", "body", "text", "password", "secret", "token", "key", "line"),
        *("rcpt_to_address", "auth_token", "X-Subject", "mailAddress", "display_name", "filename", "ip", "remote_ip"),
        *("url", "query", "html", "api_key"),
    ],
)
def test_sensitive_fields_lose_their_value(out: io.StringIO, field: str) -> None:
    log.get("x").info("e", **{field: "canary"})
    assert "canary" not in out.getvalue()
    assert lines(out)[0][field] == log.REDACTED


@pytest.mark.parametrize(
    "field", ["key_id", "address_count", "query_hash", "data_dir", "port", "smtp_code", "to_state", "address_ph"]
)
def test_harmless_fields_keep_theirs(out: io.StringIO, field: str) -> None:
    log.get("x").info("e", **{field: "abc-1"})
    assert lines(out)[0][field] == "abc-1"


@given(st.text(max_size=30), st.text(max_size=30) | st.just("part"))
def test_an_address_gets_out_by_no_field(local: str, field: str) -> None:
    address = f"{local}@agents.example"
    assume(field not in ("level", "ts"))  # which no caller writes
    event: dict[str, Any] = {
        "event": address,
        field or "f": address,
        "nested": {"a": [address, {"b": address}]},
        "raw_object": Exception(address),
        "set": {address},
        "b": address.encode("utf-8", "surrogatepass"),
    }
    redacted = log.redact(None, "info", event)
    assert "agents.example" not in json.dumps(list(redacted.values()))


def test_prose_is_not_a_code(out: io.StringIO) -> None:
    log.get("x").info("e", detail="the quarterly figures", state="done", bad="a" * 200)
    line = lines(out)[0]
    assert (line["detail"], line["state"], line["bad"]) == (log.REDACTED, "done", log.REDACTED)


def test_exceptions_tell_type_and_place_but_not_words(out: io.StringIO) -> None:
    try:
        try:
            int("canary-1")
        except ValueError as error:
            raise RuntimeError("canary-2") from error
    except RuntimeError:
        log.get("x").exception("failed")
    (line,) = lines(out)
    assert "canary" not in out.getvalue()
    assert (line["error"], line["cause"]) == ("RuntimeError", "ValueError")
    assert line["where"][-1].startswith("base/test_log.py:")


def test_libraries_are_heard_without_their_words(out: io.StringIO) -> None:
    logging.getLogger("asyncio").warning("peer sent %s", "canary")
    logging.getLogger("asyncio").info("canary")
    (line,) = lines(out)
    assert (line["event"], line["part"], line["level"]) == ("library_log", "asyncio", "warning")
    assert "canary" not in out.getvalue()


def test_levels_and_text_format(out: io.StringIO) -> None:
    stream = io.StringIO()
    log.configure("warning", "text", stream)
    log.get("x").info("quiet")
    log.get("x").warning("loud", to="canary")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()
    assert "canary" not in stream.getvalue()


def test_bad_configuration_is_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        log.configure("loud", "json")
    with pytest.raises(ValueError, match="format"):
        log.configure("info", "xml")  # type: ignore[arg-type] # a wrong value is the test


def test_address_hash() -> None:
    key = b"k" * 32
    expected = hmac.new(key, b"ann@agents.example", hashlib.sha256).hexdigest()[:16]
    assert log.address_hash(key, "Ann@Agents.Example") == expected
    assert log.address_hash(b"j" * 32, "ann@agents.example") != expected
