"""Fuzz targets for what tells the kinds of messages and attachments (requirements §7).

Each takes any octets, and fails by an assertion or by whatever the code under it raises. A fuzzer calls them by name;
`test_kinds` does with the corpus and with what hypothesis makes of it.
"""

from __future__ import annotations

import orjson

from postroom.mail import mime
from postroom.mail.automation import MAX_JSON_BYTES, classify
from postroom.mail.dsn import Action, DeliveryReport, ReportClass, parse_dsn
from postroom.mail.mdn import parse_mdn
from postroom.mail.safety import Risk, inspect
from postroom.mail.tnef import FRAME_BYTES, MAX_ATTACHMENTS, unpack


def dsn_parse(data: bytes) -> None:
    """DSN and MDN: a known class; recipients valid or absent; what is kept fits."""
    message = mime.parse(data)
    report = parse_dsn(data, message)
    if report is not None:
        _check_report(report)
    receipt = parse_mdn(data, message)
    if receipt is not None and receipt.final_recipient is not None:
        _check_address(receipt.final_recipient)
    for null_sender in (True, False):
        found = classify(data, message, null_sender=null_sender)
        assert len(orjson.dumps(found.to_json())) <= MAX_JSON_BYTES


def _check_report(report: DeliveryReport) -> None:
    assert report.report_class is None or report.report_class in ReportClass
    assert len(report.recipients) <= 100
    assert report.original_from is None or "@" in report.original_from
    for item in report.recipients:
        _check_address(item.final_recipient)
        assert item.action is None or item.action in Action
        assert item.status is None or (item.status[0] in "245" and item.status.count(".") == 2)
        assert item.diagnostic_code is None or 0 < len(item.diagnostic_code) <= 512


def _check_address(address: str) -> None:
    local, _, domain = address.rpartition("@")
    assert local
    assert domain
    assert len(address) <= 320
    assert address.isprintable()


def attachment_sniff(data: bytes) -> None:
    """Sniff and risk: a type and a risk that are known, whatever the label and the name."""
    for declared, name in (("application/octet-stream", None), ("application/pdf", "a.pdf"), ("text/plain", "a.txt")):
        found = inspect(data, declared, name)
        assert found.sniffed_type.count("/") == 1
        assert found.risk is None or found.risk in Risk


def tnef_parse(data: bytes) -> None:
    """TNEF: caps hold, names are safe, text is text."""
    found = unpack(data)
    if found is None:
        return
    assert len(found.attachments) <= MAX_ATTACHMENTS
    assert sum(len(item.data) for item in found.attachments) <= 2 * len(data) + FRAME_BYTES
    for item in found.attachments:
        assert item.filename is None or not {"/", "\\", "\x00", "\n"} & set(item.filename)
        assert item.content_type.count("/") == 1
    for text in (found.text, found.html):
        (text or "").encode()
