"""What goes over the wire, and what is refused before it does."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qsl, unquote

import httpx
import pytest
from hypothesis import example as also
from hypothesis import given
from hypothesis import strategies as st

from postroom.servers.http.rest.content import download
from postroom_client import AsyncClient, Client, ConfigError, __version__, attachment
from postroom_client.downloads import file_name
from tests.client.bridge import IDN, KEY, URL, Script, blocking, raised
from tests.client.examples import example

pytestmark = pytest.mark.covers("FR-SDK-1")

EMPTY = httpx.Response(200, json={"data": [], "next_cursor": None})


def asked(call: Callable[[Client], object], answer: httpx.Response = EMPTY) -> httpx.Request:
    """The one request of a call."""
    script = Script(answer)
    call(blocking(script))
    (request,) = script.requests
    return request


def test_the_head_of_a_request() -> None:
    request = asked(lambda client: client.folders.list_folders(IDN).first())
    assert request.url == f"{URL}/v1/identities/{IDN}/folders"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["user-agent"] == f"postroom-client/{__version__}"
    assert request.headers["accept-encoding"] == "identity"
    assert request.extensions["timeout"] == {"connect": 10, "read": 30, "write": 30, "pool": 30}


def test_patience_of_a_call() -> None:
    request = asked(lambda client: client.folders.list_folders(IDN, request_timeout=5).first())
    assert request.extensions["timeout"]["read"] == 5


def test_without_a_key_there_is_none() -> None:
    script = Script(httpx.Response(200, json=example("Health")))
    Client(URL, transport=httpx.MockTransport(script)).meta.get_health()
    assert "authorization" not in script.requests[0].headers


def test_another_key_over_the_same_connections() -> None:
    script = Script(httpx.Response(200, json=example("Me")))
    client = blocking(script)
    client.with_key("pms_other").meta.get_me()
    client.meta.get_me()
    assert [one.headers["authorization"] for one in script.requests] == ["Bearer pms_other", f"Bearer {KEY}"]
    assert isinstance(raised(lambda: client.with_key("")), ConfigError)


def test_parameters_of_a_query() -> None:
    later = datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    request = asked(
        lambda client: client.messages.list_messages(
            IDN, direction="inbound", label="a&b=c d+e", include=["placements"], after=later, limit=7
        ).first()
    )
    assert dict(parse_qsl(request.url.query.decode(), strict_parsing=True)) == {
        "direction": "inbound",
        "label": "a&b=c d+e",
        "include": "placements",
        "after": "2030-01-01T00:00:00Z",
        "limit": "7",
    }
    request = asked(lambda client: client.threads.list_threads(IDN, is_unread=True, archived=False).first())
    assert request.url.query == b"is_unread=true&archived=false"


def test_a_time_has_a_zone() -> None:
    naive = datetime(2030, 1, 1)
    assert isinstance(raised(lambda: asked(lambda c: c.messages.list_messages(IDN, after=naive).first())), ConfigError)


@given(entry=st.text(min_size=1).filter(lambda text: text not in (".", "..")))
@also("a/b?c#d%2F..")
@also("ada+tag@example.com")
def test_whatever_names_a_thing_is_one_part_of_the_path(entry: str) -> None:
    def call(client: Client) -> Any:
        return client.lists.get_list_entry("ten_x", "send", "block", entry)

    request = asked(call, httpx.Response(200, json=example("ListEntry")))
    path = request.url.raw_path.decode()
    assert path.startswith("/v1/tenants/ten_x/lists/send/block/")
    assert unquote(path.removeprefix("/v1/tenants/ten_x/lists/send/block/")) == entry
    assert path.count("/") == 7
    assert "?" not in path


@pytest.mark.parametrize("entry", ["", ".", "..", "\ud800", None])
def test_what_would_name_another_thing_is_refused(entry: Any) -> None:
    """An empty id would end every session instead of one."""
    script = Script(EMPTY)
    assert isinstance(raised(lambda: blocking(script).account.revoke_session(entry)), ConfigError)
    assert script.requests == []


def test_bodies_are_json() -> None:
    when = datetime(2030, 1, 1, tzinfo=UTC)
    request = asked(
        lambda client: client.keys.create_key(
            {"name": "Schlüssel", "level": "tenant", "permissions": ("messages:read",), "expires_at": when}
        ),
        httpx.Response(201, json=example("ApiKeyCreated")),
    )
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.content) == {
        "name": "Schlüssel",
        "level": "tenant",
        "permissions": ["messages:read"],
        "expires_at": "2030-01-01T00:00:00Z",
    }
    assert request.headers["idempotency-key"] == "key-1"


@pytest.mark.parametrize("wrong", ["\ud800 secret", float("nan"), b"secret", object(), datetime(2030, 1, 1)])
def test_what_is_no_json_is_refused_unseen(wrong: Any) -> None:
    script = Script(EMPTY)
    failure = raised(lambda: blocking(script).folders.create_folder(IDN, {"name": wrong}))
    assert isinstance(failure, ConfigError)
    assert "secret" not in str(failure)
    assert script.requests == []


@pytest.mark.parametrize("key", ["", "é", "a\nb", " a", "a ", "x" * 256, "\x7f"])
@pytest.mark.covers("FR-OUT-1")
def test_idempotency_keys(key: str) -> None:
    call = lambda: blocking(Script(EMPTY)).folders.create_folder(IDN, {"name": "B"}, idempotency_key=key)  # noqa: E731 - short
    assert isinstance(raised(call), ConfigError)


@pytest.mark.parametrize(
    "url",
    [
        *("http://mail.example", "ftp://localhost", "mail.example", "", "https://", "https://user:pass@mail.example"),
        *("https://mail.example?x=1", "https://mail.example#x", "http://localhost.example", "http://127.0.0.1.example"),
        *(
            "http://localhost@mail.example",
            "https://mail example",
            "http://[::2]",
            "https://mail.example/?",
            "https://mail.example#",
        ),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_keys_do_not_travel_in_the_open(url: str, kind: type[Client] | type[AsyncClient]) -> None:
    assert isinstance(raised(lambda: kind(url, KEY)), ConfigError)


@pytest.mark.parametrize(
    ("url", "asked_for"),
    [
        ("http://localhost:8080", "http://localhost:8080/health"),
        ("http://127.0.0.1", "http://127.0.0.1/health"),
        ("http://[::1]:81/", "http://[::1]:81/health"),
        ("https://mail.example/behind/", "https://mail.example/behind/health"),
    ],
)
def test_addresses_that_are_taken(url: str, asked_for: str) -> None:
    script = Script(httpx.Response(200, json=example("Health")))
    Client(url, KEY, transport=httpx.MockTransport(script)).meta.get_health()
    assert str(script.requests[0].url) == asked_for


@pytest.mark.parametrize("timeout", [0, -1])
def test_patience_is_above_nothing(timeout: float) -> None:
    assert isinstance(raised(lambda: Client(URL, timeout=timeout)), ConfigError)


# -- files


@given(name=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40))
def test_names_of_files_as_the_server_writes_them(name: str) -> None:
    found = file_name(download(name)["content-disposition"])
    assert found is None or not set(found) & set("/\\\r\n\0")
    assert found is None or not found.startswith(".")
    if name.isprintable() and not set(name) & set("/\\") and name.strip() == name and not name.startswith("."):
        assert found == name


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ("attachment", None),
        ('attachment; filename="../../etc/passwd"', "passwd"),
        ("attachment; filename*=UTF-8''..%2F..%2F.bashrc", "bashrc"),
        ("attachment; filename*=UTF-8''%FF%00a", "\ufffda"),
        ("attachment; filename*=UTF-8''..", None),
        ('attachment; filename="C:\\x"', None),
    ],
)
def test_names_of_files_are_names_alone(disposition: str, name: str | None) -> None:
    assert file_name(disposition) == name


def test_kinds_of_files() -> None:
    assert attachment(b"x", "a.unknown-kind")["content_type"] == "application/octet-stream"
    shown = attachment(b"x", "a.png", content_id="logo")
    assert (shown["content_type"], shown["disposition"], shown["content_id"]) == ("image/png", "inline", "logo")
    assert attachment(b"x", "a.png", "image/x-other")["content_type"] == "image/x-other"
