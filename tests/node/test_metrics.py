"""The page of metrics of a whole node: where it is, and where it is not (cli-config-ops B2, C3)."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from postroom.app import open_core
from postroom.base.secrets import ensure_secrets, load_secrets
from postroom.base.settings import SettingsError, load
from postroom.node import Node

BASE = {"POSTROOM_PLATFORM_DOMAIN": "agents.example", "POSTROOM_API_HOST": "api.example.com"}


@asynccontextmanager
async def running(url: str, data_dir: Path, listen: str, number: int = 0) -> AsyncIterator[Node]:
    wanted = {
        "server.roles": "http",
        "server.shutdown_timeout_secs": 2.0,
        "api.host": "127.0.0.1",
        "api.port": 0,
        "metrics.listen": listen,
    }
    settings = load(wanted, BASE, data_dir=data_dir, host_name="metrics")
    ensure_secrets(data_dir, os.urandom, {})
    async with open_core(settings, load_secrets(data_dir, {}), url, migrate=False) as core:
        node = Node(core, number=number)
        await node.start()
        try:
            yield node
            assert not node.failed.is_set()
        finally:
            await node.drain()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.covers("SEC-9")
async def test_a_listener_of_its_own_that_ends_with_the_server(database_url: str, tmp_path: Path) -> None:
    port = free_port()
    async with (
        running(database_url, tmp_path / "data", f"127.0.0.1:{port}") as node,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        assert node.ports["metrics"] == port
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "access-control-allow-origin" not in answer.headers
        names = {family.name for family in text_string_to_metric_families(answer.text)}
        assert {"postroom_outbox_undispatched_age_ms", "postroom_webhook_attempts", "postroom_webhook_dead"} <= names
        assert {"postroom_live_open", "postroom_stream_events", "postroom_stream_ends"} <= names
        assert "process_resident_memory_bytes" in names
        head = await client.head("/metrics")
        assert (head.status_code, head.content) == (200, b"")
        assert (await client.post("/metrics")).status_code == 405
        assert (await client.get("/v1/me")).status_code == 404
        assert (await client.get("/")).status_code == 404
        public = await client.get(f"http://127.0.0.1:{node.ports['http']}/metrics")
        assert public.status_code == 404
        assert "postroom_" not in public.text
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient() as late:
            await late.get(f"http://127.0.0.1:{port}/metrics")


async def test_every_process_has_a_port_of_its_own(database_url: str, tmp_path: Path) -> None:
    port = free_port() - 1
    async with running(database_url, tmp_path / "data", f"127.0.0.1:{port}", number=1) as node:
        assert node.ports["metrics"] == port + 1


async def test_mail_does_not_wait_for_monitoring(database_url: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with running(database_url, tmp_path / "data", f"127.0.0.1:{taken.getsockname()[1]}") as node:
            assert set(node.ports) == {"http"}


async def test_off(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, tmp_path / "data", "") as node:
        assert set(node.ports) == {"http"}


def test_where_it_is_by_default() -> None:
    endpoint = load({}, BASE).metrics.endpoint
    assert endpoint is not None
    assert (endpoint.host, endpoint.port) == ("127.0.0.1", 9464)
    named = load({}, {**BASE, "POSTROOM_METRICS_LISTEN": "[fd00::5]:9000"}).metrics.endpoint
    assert named is not None
    assert (named.host, named.port) == ("fd00::5", 9000)


PUBLIC = (
    *("0.0.0.0:9464", "[::]:9464", "192.0.2.1:9464", "8.8.8.8:9464", "[2001:db8::1]:9464", "[::ffff:8.8.8.8]:9464"),
    *("localhost:9464", "mail.example.com:9464", "/run/metrics", "9464", "127.0.0.1:0"),
)


@pytest.mark.parametrize("listen", PUBLIC)
def test_it_is_not_public(listen: str) -> None:
    with pytest.raises(SettingsError, match=r"metrics\.listen"):
        load({"metrics.listen": listen}, BASE)


def test_ports_of_all_processes_are_its_own() -> None:
    load({"metrics.listen": "127.0.0.1:8079", "api.port": 8080}, BASE)
    with pytest.raises(SettingsError, match=r"api\.port, metrics\.listen: all want port 8080"):
        load({"metrics.listen": "127.0.0.1:8079", "api.port": 8080, "server.processes": 2}, BASE)
    with pytest.raises(SettingsError, match=r"metrics\.listen: each of server\.processes"):
        load({"metrics.listen": "127.0.0.1:65535", "server.processes": 2}, BASE)
