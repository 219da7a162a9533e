"""The demo's pure parts: its mail, its record, its ports."""

from __future__ import annotations

import json
import os
import socket
import stat
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.headerregistry import Address
from email.policy import default
from pathlib import Path

import pytest

from postroom.base.settings import load
from postroom.demo import place
from postroom.demo.place import Agent, Cast, Known, Person, Ports, PortsTaken
from postroom.demo.samples import pdf, samples
from postroom.mail.mime import parse

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ADA = Address("Ada", "ada", "agents.example")
SCOUT = Address("Scout", "scout", "agents.example")
CAST = Cast(
    "ten_x", "pmk_x", Person("ada@agents.example", "secret", "idn_a"), Agent("scout@agents.example", "idn_s", "pmk_s")
)


def test_the_mail_repeats_to_the_byte() -> None:
    assert list(samples(ADA, SCOUT, NOW)) == list(samples(ADA, SCOUT, NOW))
    later = list(samples(ADA, SCOUT, NOW + timedelta(days=1)))
    assert [one.raw for one in later] != [one.raw for one in samples(ADA, SCOUT, NOW)]


def test_the_mail_is_well_formed_and_of_many_kinds() -> None:
    letters = [(sample, message_from_bytes(sample.raw, policy=default)) for sample in samples(ADA, SCOUT, NOW)]
    for sample, letter in letters:
        assert not letter.defects
        assert b"\n" not in sample.raw.replace(b"\r\n", b"")
        assert max(len(line) for line in sample.raw.split(b"\r\n")) <= 998
        assert set(sample.recipients) <= {"ada@agents.example", "scout@agents.example"}
        assert sample.sender.rpartition("@")[2].endswith(("example.com", "example.net", "example.org"))
        assert datetime.strptime(letter["Date"], "%a, %d %b %Y %H:%M:%S %z") < NOW
        assert parse(sample.raw).root is not None
    kinds = {part.get_content_type() for _, letter in letters for part in letter.walk()}
    assert {"text/plain", "text/html", "application/pdf", "multipart/mixed", "multipart/alternative"} <= kinds
    assert len({letter["Message-ID"] for _, letter in letters}) == len(letters)
    assert any(not str(letter["Subject"]).isascii() for _, letter in letters)
    replies = [letter for _, letter in letters if letter["In-Reply-To"]]
    ids = {str(letter["Message-ID"]) for _, letter in letters}
    assert replies
    assert all(str(letter["In-Reply-To"]) in ids for letter in replies)


def test_the_pdf_is_right_to_the_byte() -> None:
    document = pdf("(a\\b) ü")
    assert document.startswith(b"%PDF-1.4\n")
    assert b"(\\(a\\\\b\\) \xfc) Tj" in document
    start = int(document.rpartition(b"startxref\n")[2].split()[0])
    assert document[start:].startswith(b"xref\n0 5\n")
    places = [int(line.split()[0]) for line in document[start:].split(b"\n")[3:7]]
    assert [document[at:].split(b" ")[0] for at in places] == [b"1", b"2", b"3", b"4"]


def test_the_file_of_the_settings_is_the_settings(tmp_path: Path) -> None:
    ports = Ports.from_base(18025)
    (tmp_path / "postroom.toml").write_text(place.config_text(ports))
    read = load({"server.data_dir": tmp_path}, {}, tmp_path / "postroom.toml", host_name="demo")
    assert read == place.demo_settings(tmp_path, ports)
    assert (read.api.port, read.smtp.port, read.imap.port) == (18025, 18026, 18027)
    assert (read.smtp.submission_port, read.smtp.smtps_port) == (18028, 18029)
    assert {read.api.host, read.smtp.host, read.imap.host} == {"127.0.0.1"}


def test_the_record_says_everything_and_is_private(tmp_path: Path) -> None:
    document = place.record(CAST, Ports.from_base(18025))
    assert document == {
        "http": "http://127.0.0.1:18025",
        "smtp": {"host": "127.0.0.1", "port": 18026},
        "submission": {"host": "127.0.0.1", "port": 18028},
        "smtps": {"host": "127.0.0.1", "port": 18029},
        "imap": {"host": "127.0.0.1", "port": 18027},
        "domain": "agents.example",
        "tenant_id": "ten_x",
        "api_key": "pmk_x",
        "person": {"address": "ada@agents.example", "password": "secret", "identity_id": "idn_a"},
        "agent": {"address": "scout@agents.example", "identity_id": "idn_s", "key": "pmk_s"},
    }
    assert "secret" not in repr(CAST)
    place.write_private(tmp_path / place.RECORD, json.dumps(document))
    place.write_private(tmp_path / place.RECORD, json.dumps(document))
    assert stat.S_IMODE((tmp_path / place.RECORD).stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [place.RECORD]
    assert place.read_known(tmp_path) == Known("pmk_x", "secret", "pmk_s")


def test_a_record_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    document = place.record(CAST, Ports.from_base(18025))
    del document["agent"]["key"]
    place.write_private(tmp_path / place.RECORD, json.dumps(document))
    assert place.read_known(tmp_path) == Known("pmk_x", "secret")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "no JSON", '{"api_key": "k", "person": {"password": "x"}, "agent": []}'),
        '{"api_key": 1, "person": {"password": "x"}, "agent": {}}',
    ],
)
def test_a_record_that_is_not_ours_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / place.RECORD).write_text(text)
    assert place.read_known(tmp_path) == Known()


def test_ports_are_free_ones() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(PortsTaken, match=str(taken)):
            place.choose_ports(taken)
    found = place.choose_ports(None)
    assert found.http >= place.DEFAULT_BASE
    assert (found.smtp, found.imap) == (found.http + 1, found.http + 2)
