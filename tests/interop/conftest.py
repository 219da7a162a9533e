"""Real servers on addresses of this machine, one of each for a process of tests, and a Postroom.

`make peers` fetches them. Where one is missing its tests are skipped, with the reason; they fail instead when
`POSTROOM_TEST_PEERS` names the directory where it should be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.conftest import new_database
from tests.interop.exim import Exim
from tests.interop.office import DOMAIN, Office, open_office
from tests.interop.opensmtpd import OpenSmtpd
from tests.interop.place import Missing, our_address, skip_or_fail
from tests.interop.postfix import Postfix
from tests.interop.tls import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def exim(authority: Authority) -> Iterator[Exim]:
    try:
        server = Exim(authority, DOMAIN)
    except Missing as error:
        skip_or_fail(error)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postfix(authority: Authority) -> Iterator[Postfix]:
    try:
        server = Postfix(authority, DOMAIN)
    except Missing as error:
        skip_or_fail(error)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def opensmtpd() -> Iterator[OpenSmtpd]:
    """As long as the Postroom: it would use a connection to the one before for a while."""
    try:
        server = OpenSmtpd(DOMAIN)
    except Missing as error:
        skip_or_fail(error)
    yield server
    server.stop()


@pytest.fixture(params=["postfix", "exim", "opensmtpd"])
def peer(request: pytest.FixtureRequest) -> Postfix | Exim | OpenSmtpd:
    """Each of them."""
    found: Postfix | Exim | OpenSmtpd = request.getfixturevalue(request.param)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def office(
    postgres_url: str, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Office]:
    """A Postroom that delivers to MX hosts, for all tests of a module, which have one loop."""
    try:
        our_address()
    except Missing as error:
        skip_or_fail(error)
    async with (
        new_database(postgres_url, template_database) as url,
        open_office(url, tmp_path_factory.mktemp("office")) as made,
    ):
        yield made
