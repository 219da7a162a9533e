"""A name server on this machine for tests: zones, refusals, silence, cut answers and lies, over UDP and TCP."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

from postroom.net.dns_wire import Scheme, Server

Reply = Callable[[dns.message.QueryMessage], Sequence[bytes]]
"""What is sent for a question, datagram by datagram."""

Stream = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_CHAIN: Final = 12


class NameServer:
    """Answers from what it was told with `add`; every other name does not exist. Use it with `async with`."""

    def __init__(
        self, *, soa: bool = True, minimum: int = 30, soa_ttl: int = 900, stream: Stream | None = None
    ) -> None:
        self.asked: list[tuple[str, str, str]] = []
        """Questions in order: name, type, `udp`, `tcp` or another way."""
        self.soa, self.minimum, self.soa_ttl = soa, minimum, soa_ttl
        self._stream = stream or self.serve_stream
        self.recurses = True
        """Whether chains of CNAMEs are followed to their end."""
        self.knows_edns = True
        self.authenticates = False
        self._records: dict[str, dict[str, dns.rrset.RRset]] = defaultdict(dict)
        self._codes: dict[str, tuple[dns.rcode.Rcode, int | None]] = {}
        self._delays: dict[str, float] = {}
        self._cut: set[str] = set()
        self._scripts: dict[str, Reply] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, name: str, kind: str, *data: str, ttl: int = 600) -> NameServer:
        self._records[name][kind] = dns.rrset.from_text(f"{name}.", ttl, "IN", kind, *data)
        return self

    def refuse(self, name: str, code: dns.rcode.Rcode, extended: int | None = None) -> NameServer:
        self._codes[name] = code, extended
        return self

    def delay(self, name: str, seconds: float) -> NameServer:
        self._delays[name] = seconds
        return self

    def cut(self, name: str) -> NameServer:
        self._cut.add(name)
        return self

    def script(self, name: str, reply: Reply) -> NameServer:
        self._scripts[name] = reply
        return self

    def count(self, name: str | None = None) -> int:
        return sum(name is None or asked == name for asked, _, _ in self.asked)

    def ways(self) -> Counter[str]:
        return Counter(way for _, _, way in self.asked)

    @property
    def server(self) -> Server:
        return Server(Scheme.DNS, "127.0.0.1", self.port)

    async def __aenter__(self) -> NameServer:
        loop = asyncio.get_running_loop()
        for _ in range(20):
            self._udp, _ = await loop.create_datagram_endpoint(lambda: _Udp(self), local_addr=("127.0.0.1", 0))
            self.port: int = self._udp.get_extra_info("sockname")[1]
            try:
                self._tcp = await asyncio.start_server(self._stream, "127.0.0.1", self.port)
            except OSError:
                self._udp.close()
            else:
                return self
        raise OSError("no port is free for both UDP and TCP")

    async def __aexit__(self, *_: object) -> None:
        self._udp.close()
        self._tcp.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def respond(self, data: bytes, way: str) -> tuple[float, Sequence[bytes]]:
        """The delay in seconds and the messages that answer `data`."""
        query = dns.message.from_wire(data)
        assert isinstance(query, dns.message.QueryMessage)
        name = query.question[0].name.to_text(omit_final_dot=True).lower()
        self.asked.append((name, dns.rdatatype.to_text(query.question[0].rdtype), way))
        delay = self._delays.get(name, 0.0)
        if name in self._scripts:
            return delay, self._scripts[name](query)
        if way == "udp" and name in self._cut:
            cut = dns.message.make_response(query)
            cut.flags |= dns.flags.TC
            return delay, [cut.to_wire()]
        return delay, [self.answer(query, name).to_wire(max_size=65535)]

    def answer(self, query: dns.message.QueryMessage, name: str) -> dns.message.QueryMessage:
        if query.edns >= 0 and not self.knows_edns:
            return _response(query, dns.rcode.FORMERR, edns=False)
        if name in self._codes:
            code, extended = self._codes[name]
            return _response(query, code, extended)
        made = _response(query, dns.rcode.NOERROR)
        if self.authenticates:
            made.flags |= dns.flags.AD
        self._fill(made, name, dns.rdatatype.to_text(query.question[0].rdtype))
        return made

    def _fill(self, made: dns.message.QueryMessage, name: str, kind: str) -> None:
        for _ in range(_CHAIN):
            here = self._records.get(name)
            if here is None:
                made.set_rcode(dns.rcode.NXDOMAIN)
                break
            if kind in here:
                made.answer.append(here[kind])
                return
            if "CNAME" not in here:
                break
            made.answer.append(here["CNAME"])
            if not self.recurses:
                return
            name = here["CNAME"][0].target.to_text(omit_final_dot=True).lower()
        if self.soa:
            text = f"ns.test. root.test. 1 2 3 4 {self.minimum}"
            made.authority.append(dns.rrset.from_text(".", self.soa_ttl, "IN", "SOA", text))

    async def serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            way = "tls" if writer.get_extra_info("ssl_object") else "tcp"
            delay, messages = self.respond(await reader.readexactly(length), way)
            await asyncio.sleep(delay)
            for message in messages:
                writer.write(struct.pack("!H", len(message)) + message)
            await writer.drain()
        except (OSError, EOFError):
            return  # the resolver has gone
        finally:
            writer.close()

    def serve_datagram(self, transport: asyncio.DatagramTransport, data: bytes, peer: Any) -> None:
        delay, messages = self.respond(data, "udp")

        async def later() -> None:
            await asyncio.sleep(delay)
            for message in messages:
                transport.sendto(message, peer)

        task = asyncio.create_task(later())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # asyncio's own is no subclass

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._server.serve_datagram(self._transport, data, addr)


def _response(
    query: dns.message.QueryMessage, code: dns.rcode.Rcode, extended: int | None = None, *, edns: bool = True
) -> dns.message.QueryMessage:
    made = dns.message.make_response(query, recursion_available=True)
    assert isinstance(made, dns.message.QueryMessage)
    if not edns:
        made.use_edns(-1)
    elif extended is not None:
        made.use_edns(0, options=[dns.edns.EDEOption(dns.edns.EDECode.make(extended))])
    made.set_rcode(code)
    return made
