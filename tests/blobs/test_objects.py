"""What only object storage does: being far away."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from obstore.store import S3Store

from postroom.blobs import PutGroup, StorageError
from postroom.blobs.objects import ObjectStore


class Server:
    """A host that takes connections and either says nothing or answers everything with one status."""

    def __init__(self) -> None:
        self.status: str | None = None
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while self.status and await reader.readuntil(b"\r\n\r\n"):
            writer.write(f"HTTP/1.1 {self.status}\r\nContent-Length: 0\r\n\r\n".encode())
        await reader.read()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    listener = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listener.sockets[0].getsockname()[1]
    yield made
    made.close()
    listener.close()


def over(server: Server, timeout: float) -> ObjectStore:
    return ObjectStore(
        S3Store(
            "bucket",
            endpoint=f"http://127.0.0.1:{server.port}",
            region="eu-west-1",
            skip_signature=True,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        ),
        timeout=timeout,
    )


@pytest.mark.covers("edge:J1")
async def test_silence_ends_in_an_error(server: Server) -> None:
    store = over(server, 0.1)
    with pytest.raises(StorageError, match="timeout"):
        await store.get("a/b")
    (result,) = await store.put_many([PutGroup((b"x",), ("a/b",))])
    assert isinstance(result, StorageError)


@pytest.mark.covers("edge:J1")
async def test_errors_of_the_far_end_are_ours_and_tell_no_addresses(server: Server) -> None:
    server.status = "403 Forbidden"
    store = over(server, 30)
    for asked in (store.get("a/b"), store.put("a/b", b""), store.list(), store.size("a/b"), store.delete(["a/b"])):
        with pytest.raises(StorageError) as caught:
            await asked
        assert str(server.port) not in str(caught.value)
