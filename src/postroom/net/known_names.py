"""A `Resolver` that knows some names by itself and asks another about the rest: where there is no DNS to ask."""

from __future__ import annotations

from collections.abc import Awaitable
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeVar

from postroom.mailauth import resolver as auth
from postroom.mailauth.zone import Zone
from postroom.net.dns_types import (
    Answer,
    Failure,
    IpAddress,
    Kind,
    MxRecord,
    NoData,
    NoSuchName,
    Resolver,
    TemporaryFailure,
    TlsaRecord,
)

TTL_SECS = 300.0

T = TypeVar("T")


class KnownNames:
    """What stands in `zone` is answered from there; any other name is asked of `otherwise`, or does not exist."""

    def __init__(self, zone: Zone, otherwise: Resolver | None = None) -> None:
        self._zone = zone
        self._otherwise = otherwise

    async def a(self, name: str, *, within: float | None = None) -> Answer[IPv4Address]:
        found = await self._find(name, Kind.A, self._zone.a(name))
        return found or await self._rest(Kind.A, name).a(name, within=within)

    async def aaaa(self, name: str, *, within: float | None = None) -> Answer[IPv6Address]:
        found = await self._find(name, Kind.AAAA, self._zone.aaaa(name))
        return found or await self._rest(Kind.AAAA, name).aaaa(name, within=within)

    async def mx(self, name: str, *, within: float | None = None) -> Answer[MxRecord]:
        found: Answer[Any] | None = await self._find(name, Kind.MX, self._zone.mx(name))
        if found is None:
            return await self._rest(Kind.MX, name).mx(name, within=within)
        records = tuple(MxRecord(at, exchange) for at, exchange in enumerate(found.records))
        return Answer(found.name, found.canonical, records, found.ttl, found.authenticated)

    async def txt(self, name: str, *, within: float | None = None) -> Answer[bytes]:
        found = await self._find(name, Kind.TXT, self._zone.txt(name))
        return found or await self._rest(Kind.TXT, name).txt(name, within=within)

    async def ptr(self, address: IpAddress, *, within: float | None = None) -> Answer[str]:
        name = address.reverse_pointer
        found = await self._find(name, Kind.PTR, self._zone.ptr(address))
        return found or await self._rest(Kind.PTR, name).ptr(address, within=within)

    async def tlsa(self, name: str, *, within: float | None = None) -> Answer[TlsaRecord]:
        return await self._rest(Kind.TLSA, name).tlsa(name, within=within)

    async def _find(self, name: str, kind: Kind, lookup: Awaitable[auth.Answer[T]]) -> Answer[T] | None:
        """None for a name that the zone does not have."""
        try:
            found = await lookup
        except auth.NoRecordError:
            raise NoData(name, kind, canonical=name) from None
        except auth.NameNotFoundError:
            return None
        except auth.TemporaryResolverError:
            raise TemporaryFailure(name, kind, Failure.TIMEOUT) from None
        return Answer(name, name, tuple(found), TTL_SECS, found.authenticated)

    def _rest(self, kind: Kind, name: str) -> Resolver:
        if self._otherwise is None:
            raise NoSuchName(name, kind, canonical=name)
        return self._otherwise
