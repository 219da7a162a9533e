"""What anybody may read: the contact for faults of security, and the page of the API."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import date, datetime
from html.parser import HTMLParser

import httpx
import pytest

from postroom import BUILT
from postroom.servers.http import create_http
from postroom.servers.http.security_text import SecurityText
from tests.rest.sender import code
from tests.rest.world import World

PATH = "/.well-known/security.txt"
FIELD = re.compile(r"[A-Za-z-]+: \S.*")


@pytest.fixture
async def told(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A deployment whose operator says where faults are reported."""
    security = SecurityText.of("security@agents.example", "api.example")
    app = create_http(replace(world.app.services, security=security))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.example") as client:
        yield client


@pytest.mark.covers("security-privacy:A13", "RFC 9116 §2.3", "RFC 9116 §2.5.3", "RFC 9116 §2.5.5")
async def test_where_faults_are_reported(told: httpx.AsyncClient) -> None:
    response = await told.get(PATH)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    lines = response.text.splitlines()
    assert all(FIELD.fullmatch(line) for line in lines)
    fields = dict(line.split(": ", 1) for line in lines)
    assert len(fields) == len(lines)
    assert fields["Contact"] == "mailto:security@agents.example"
    assert fields["Canonical"] == f"https://api.example{PATH}"
    assert fields["Preferred-Languages"] == "en"
    expires = datetime.fromisoformat(fields["Expires"])
    assert expires.tzinfo is not None
    assert (expires.date() - date.fromisoformat(BUILT)).days == 365


@pytest.mark.covers("security-privacy:A13", "RFC 6068 §2")
@pytest.mark.parametrize(
    ("contact", "uri"),
    [("a+b@x.example", "mailto:a%2Bb@x.example"), ("a?to=b&c@x.example", "mailto:a%3Fto%3Db%26c@x.example")],
)
def test_the_contact_is_a_uri(contact: str, uri: str) -> None:
    assert f"Contact: {uri}\n" in SecurityText(contact, "api.example", date(2030, 1, 1)).render()


@pytest.mark.covers("security-privacy:A13")
async def test_without_a_contact_there_is_no_file(world: World) -> None:
    assert SecurityText.of("", "api.example") is None
    assert code(await world.get(PATH, {})) == "route_not_found"
    assert code(await world.get(PATH)) == "route_not_found"


class _Page(HTMLParser):
    """The ids, the links and everything else that a browser might fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if tag == "a" else []
        if tag in ("script", "link", "img", "iframe", "base", "form") or "src" in given:
            self.fetched.append(tag)


async def test_the_page_of_the_api(world: World) -> None:
    """Whole without a script and without anything from elsewhere; all that it points at is on it."""
    response = await world.get("/docs", {})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page = _Page()
    page.feed(response.text)
    assert page.fetched == []
    assert not any(link.lower().startswith(("http:", "https:", "//")) for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert {link for link in page.links if link != "/openapi.json"} <= {f"#{one}" for one in page.ids}
    assert {rule.operation for rule in world.app.table.rules} <= set(page.ids)
    document = (await world.get("/openapi.json", {})).json()
    assert {f"schema-{name}" for name in document["components"]["schemas"]} <= set(page.ids)
