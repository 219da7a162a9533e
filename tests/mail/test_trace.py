"""The way that a message took, and what its mailing list says, as real programs write it."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.header import Headers
from postroom.mail.trace import MAX_HOPS, MAX_LIST_LINKS, hops, mailing_list, parse_received

POSTFIX = (
    b"from out.example.com (out.example.com [192.0.2.7])\r\n\t(using TLSv1.3 with cipher TLS_AES_256_GCM_SHA384)\r\n\t"
    b"by mx.example.net (Postfix) with ESMTPSA id 4X1\r\n\tfor <bob@example.net>; Mon,  2 Mar 2026 10:00:05 +0100 (CET)"
)


def test_a_whole_field() -> None:
    hop = parse_received(POSTFIX)
    assert (hop.sender, hop.address, hop.receiver) == ("out.example.com", ip_address("192.0.2.7"), "mx.example.net")
    assert (hop.protocol, hop.encrypted, hop.authenticated) == ("ESMTPSA", True, True)
    assert (hop.identifier, hop.recipient) == ("4X1", "bob@example.net")
    assert hop.at == datetime(2026, 3, 2, 9, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "sender", "address", "receiver", "protocol", "encrypted"),
    [
        # Exim writes the address as the name, and what the sender called itself beside it; qmail the other way round.
        ("from [203.0.113.5] (port=4321 helo=[10.0.0.2]) by mx.example with esmtps id 1 (Exim 4.97)",
         "[203.0.113.5]", "203.0.113.5", "mx.example", "ESMTPS", True),
        ("from unknown (HELO [10.0.0.2]) (203.0.113.5) by mx.example with SMTP; 2 Mar 2026 09:00:00 -0000",
         "unknown", "203.0.113.5", "mx.example", "SMTP", False),
        ("from [10.0.0.2] (host.example [203.0.113.5]) by mx.example with ESMTP",
         "[10.0.0.2]", "203.0.113.5", "mx.example", "ESMTP", False),
        ("from A.example (2001:db8::5) by B.example (2001:db8::6) with Microsoft SMTP Server (version=TLS1_3,"
         " cipher=X) id 15.20.1.2", "A.example", "2001:db8::5", "B.example", "SMTP", True),
        ("from a.example (a.example. [IPv6:2001:db8::5]) by mx.example with UTF8SMTPS id x",
         "a.example", "2001:db8::5", "mx.example", "UTF8SMTPS", True),
        ("(qmail 4711 invoked by uid 89); 2 Mar 2026 09:00:00 -0000", None, None, None, None, False),
        ("by 2002:a05:6a06:7a0f with SMTP id k15csp1; Mon, 2 Mar 2026 01:00:00 -0800 (PST)",
         None, None, "2002:a05:6a06:7a0f", "SMTP", False),
        ("from a.example (999.1.1.1) by b.example", "a.example", None, "b.example", None, False),
        ("", None, None, None, None, False),
    ],
)  # fmt: skip
def test_as_servers_write_it(
    value: str, sender: str | None, address: str | None, receiver: str | None, protocol: str | None, encrypted: bool
) -> None:
    hop = parse_received(value.encode())
    assert (hop.sender, hop.receiver, hop.protocol, hop.encrypted) == (sender, receiver, protocol, encrypted)
    assert hop.address == (None if address is None else ip_address(address))


def test_the_way() -> None:
    first = b"from a.example by b.example with SMTP; Mon, 2 Mar 2026 08:59:00 +0000"
    way = hops(Headers.parse(b"Received: " + POSTFIX + b"\r\nX: y\r\nReceived: " + first + b"\r\n"))
    assert [hop.receiver for hop in way] == ["mx.example.net", "b.example"]
    assert [hop.delay for hop in way] == [timedelta(seconds=65), None]
    assert len(hops(Headers.parse(b"Received: by a\r\n" * 500))) == MAX_HOPS


def test_a_list() -> None:
    found = mailing_list(
        Headers.parse(
            b"List-Id: =?utf-8?q?Die_K=C3=BCche?= <Kitchen.Lists.example.org>\r\n"
            b"List-Unsubscribe: <https://lists.example.org/u?\r\n t=1>, (by mail) <mailto:leave@lists.example.org>\r\n"
            b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
            b"List-Post: NO (announcements)\r\nList-Archive: https://lists.example.org/a\r\n"
        )
    )
    assert found is not None
    assert (found.identifier, found.name) == ("kitchen.lists.example.org", "Die Küche")
    assert dict(found.links) == {
        "unsubscribe": ("https://lists.example.org/u?t=1", "mailto:leave@lists.example.org"),
        "archive": ("https://lists.example.org/a",),
    }
    assert found.one_click
    assert found.closed


@pytest.mark.parametrize(
    ("value", "identifier", "name"),
    [
        (b"<dev.example.org>", "dev.example.org", None),
        (b'"A, B" <dev.example.org>', "dev.example.org", "A, B"),
        (b"dev.example.org", "dev.example.org", None),
        (b"The list of lists", None, "The list of lists"),
        (b"<>", None, "<>"),
    ],
)
def test_ids_of_lists(value: bytes, identifier: str | None, name: str | None) -> None:
    found = mailing_list(Headers.parse(b"List-Id: " + value + b"\r\n"))
    assert found is not None
    assert (found.identifier, found.name) == (identifier, name)


def test_what_no_list_says() -> None:
    assert mailing_list(Headers.parse(b"Subject: x\r\n")) is None
    # A click must be safe from who reads along, and lead somewhere that a browser goes.
    for link in (b"<http://example.org/u>", b"<javascript:alert(1)>"):
        head = b"List-Id: <a.b>\r\nList-Unsubscribe: " + link
        found = mailing_list(Headers.parse(head + b"\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"))
        assert found is not None
        assert not found.one_click
    many = mailing_list(Headers.parse(b"List-Help: " + b"<https://a.example/>," * 1000 + b"\r\n"))
    assert many is not None
    assert len(many.links["help"]) == MAX_LIST_LINKS


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    line = data.replace(b"\n", b" ")
    parse_received(data)
    hops(Headers.parse(b"Received: " + line + b"\r\n"))
    mailing_list(Headers.parse(b"List-Id: " + line + b"\r\nList-Unsubscribe: " + line + b"\r\n"))


@pytest.mark.parametrize("piece", [b"(", b"<", b'"', b"from (", b"\\", b"[", b"a:", b"1.", b"(a(", b"helo="])
def test_hostile_fields_end(piece: bytes) -> None:
    parse_received(piece * 100_000)
    mailing_list(Headers.parse(b"List-Unsubscribe: " + piece * 100_000 + b"\r\n"))
