"""Verifiers of webhooks, the client's and those of the guide, against what the server signs (FR-WH-2, K1)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.events.webhooks import signing
from postroom_client.webhooks import InvalidWebhook, verify

ROOT: Final = Path(__file__).resolve().parents[2]
GUIDE: Final = (ROOT / "docs" / "guide" / "webhooks.md").read_text()
KEY, OTHER = b"k" * 32, b"o" * 32
SECRET: Final = signing.secret_text(KEY)
BODY: Final = '{"id": "evt_1", "data": "ä"}\n'.encode()


def snippet(title: str) -> str:
    found = re.search(rf"### {title}\n.*?```\w+\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None, title
    return found[1]


@pytest.mark.covers("FR-WH-2", "FR-SDK-1", "edge:K1")
@given(st.binary(max_size=200), st.binary(min_size=1, max_size=64))
def test_the_client_takes_what_the_server_signs(body: bytes, secret: bytes) -> None:
    sent = signing.headers([OTHER, secret], "evt_1", 1_900_000_000, body)
    text = signing.secret_text(secret)
    assert verify(text, sent, body, now=1_900_000_000) == "evt_1"
    assert verify(text, {name.upper(): value for name, value in sent.items()}, body, now=1_900_000_300) == "evt_1"


@pytest.mark.covers("FR-WH-2")
@pytest.mark.parametrize(
    ("changes", "body", "secret", "now", "code"),
    [
        ({}, BODY + b" ", SECRET, 0, "no_matching_signature"),
        ({"webhook-id": "evt_2"}, BODY, SECRET, 0, "no_matching_signature"),
        ({"webhook-timestamp": "1900000001"}, BODY, SECRET, 0, "no_matching_signature"),
        ({"webhook-signature": "v1,x v2,y ä"}, BODY, SECRET, 0, "no_matching_signature"),
        ({}, BODY, signing.secret_text(OTHER), 0, "no_matching_signature"),
        ({}, BODY, SECRET, 301, "timestamp_out_of_tolerance"),
        ({}, BODY, SECRET, -301, "timestamp_out_of_tolerance"),
        ({"webhook-timestamp": "now"}, BODY, SECRET, 0, "missing_header"),
        ({"webhook-signature": ""}, BODY, SECRET, 0, "missing_header"),
        ({"webhook-id": ""}, BODY, SECRET, 0, "missing_header"),
        ({}, BODY, "whsec_", 0, "malformed_secret"),
        ({}, BODY, "whsec_%%", 0, "malformed_secret"),
    ],
)
def test_the_client_refuses(changes: dict[str, str], body: bytes, secret: str, now: int, code: str) -> None:
    sent = signing.headers([KEY], "evt_1", 1_900_000_000, BODY) | changes
    with pytest.raises(InvalidWebhook) as caught:
        verify(secret, sent, body, now=1_900_000_000 + now)
    assert caught.value.code == code


# -- the snippets of the guide

Check = Callable[[dict[str, str], bytes], bool]


def _python(path: Path) -> Check:
    script = path / "check.py"
    script.write_text(
        f"{snippet('Python')}\nimport json, sys\n"
        f"print(verify({SECRET!r}, json.loads(sys.argv[1]), sys.stdin.buffer.read()))\n"
    )
    return lambda headers, body: _said([sys.executable, str(script), json.dumps(headers)], body) == "True"


def _node(path: Path) -> Check:
    script = path / "check.js"
    script.write_text(
        f"{snippet('Node')}\n"
        f"console.log(verify({SECRET!r}, JSON.parse(process.argv[2]), require('node:fs').readFileSync(0)));\n"
    )
    return lambda headers, body: _said(["node", str(script), json.dumps(headers)], body) == "true"


def _go(path: Path) -> Check:
    program = (
        snippet("Go")
        .replace("package hooks", "package main")
        .replace('"net/http"', '"encoding/json"\n\t"fmt"\n\t"io"\n\t"net/http"\n\t"os"')
    )
    (path / "main.go").write_text(
        program + "\nfunc main() {\n\tvar given map[string]string\n\t_ = json.Unmarshal([]byte(os.Args[1]), &given)\n"
        "\theader := http.Header{}\n\tfor name, value := range given {\n\t\theader.Set(name, value)\n\t}\n"
        f'\tbody, _ := io.ReadAll(os.Stdin)\n\tfmt.Println(Verify("{SECRET}", header, body))\n}}\n'
    )
    subprocess.run(["go", "build", "-o", "check", "main.go"], cwd=path, check=True, timeout=280)
    return lambda headers, body: _said([str(path / "check"), json.dumps(headers)], body) == "true"


def _shell(path: Path) -> Check:
    script = path / "check.sh"
    script.write_text(snippet("Shell"))

    def check(headers: dict[str, str], body: bytes) -> bool:
        (path / "body").write_bytes(body)
        given = {
            "SECRET": SECRET,
            "BODY": str(path / "body"),
            "ID": headers["webhook-id"],
            "STAMP": headers["webhook-timestamp"],
            "SIGNATURES": headers["webhook-signature"],
        }
        return _said(["sh", str(script)], b"", given) == "valid"

    return check


def _said(command: list[str], body: bytes, more: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, input=body, env={**os.environ, **(more or {})}, capture_output=True, check=True, timeout=60
    )
    return done.stdout.decode().strip()


@pytest.mark.timeout(300)  # the compiler of Go begins with Go's own library
@pytest.mark.covers("FR-WH-2", "edge:K1")
@pytest.mark.parametrize(
    ("runtime", "made"),
    [("python", _python), ("node", _node), ("go", _go), ("openssl", _shell)],
    ids=["python", "node", "go", "openssl"],
)
def test_the_snippets_of_the_guide(tmp_path: Path, runtime: str, made: Callable[[Path], Check]) -> None:
    if runtime != "python" and shutil.which(runtime) is None:
        pytest.skip(f"{runtime} is not installed")
    check, now = made(tmp_path), int(time.time())
    sent = signing.headers([KEY], "evt_1", now, BODY)
    both = signing.headers([OTHER, KEY], "evt_1", now, BODY)
    assert check(sent, BODY)
    assert check(both, BODY)
    assert not check(sent, BODY + b" ")
    assert not check(sent | {"webhook-id": "evt_2"}, BODY)
    assert not check(signing.headers([OTHER], "evt_1", now, BODY), BODY)
    if runtime != "openssl":  # which looks at one request, whenever it came
        old = signing.headers([KEY], "evt_1", now - 400, BODY)
        assert not check(old, BODY)


class _Receiver(BaseHTTPRequestHandler):
    """Verifies what is posted as the guide says."""

    taken: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.taken.append(verify(SECRET, dict(self.headers.items()), body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.mark.covers("FR-WH-2")
def test_the_request_of_the_guide_is_as_ours_are(tmp_path: Path) -> None:
    for program in ("curl", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    (tmp_path / "try.sh").write_text(snippet("curl"))
    (tmp_path / "body").write_bytes(BODY)
    _Receiver.taken.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        given = {"SECRET": SECRET, "BODY": str(tmp_path / "body"), "URL": f"http://127.0.0.1:{server.server_port}/"}
        given["NO_PROXY"] = given["no_proxy"] = "127.0.0.1"
        try:
            assert _said(["sh", str(tmp_path / "try.sh")], b"", given) == "204"
        finally:
            server.shutdown()
    assert len(_Receiver.taken) == 1
