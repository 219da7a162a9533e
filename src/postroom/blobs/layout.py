"""Key to path and back, for the store on disk: a pure function, so that rows need name keys only (decisions B5).

===========================================  ==========================================
key                                          path below the root
===========================================  ==========================================
``t/{ten}/i/{idn}/m/{msg}/raw.eml``          ``mail/{ten}/{idn}/cur/{msg}:2,``
``t/{ten}/i/{idn}/out/{msg}.eml``            ``mail/{ten}/{idn}/cur/{msg}.out:2,``
any other ``a/b/c``                          ``objects/a/b/c``
===========================================  ==========================================

The Maildir names are fixed: nothing is renamed after delivery, flags and folders are facts of the database.
"""

import os
import re
from typing import Final
from urllib.parse import quote

from .store import InvalidKey, check_key

MAIL: Final = "mail"
OBJECTS: Final = "objects"
BY_ADDRESS: Final = "by-address"
MAX_NAME_BYTES: Final = 255

_ULID: Final = "[0-7][0-9A-HJKMNP-TV-Z]{25}"
_MAIL_KEY: Final = re.compile(rf"t/(ten_{_ULID})/i/(idn_{_ULID})/(?:m/(msg_{_ULID})/raw\.eml|out/(msg_{_ULID})\.eml)")
_MAIL_NAME: Final = re.compile(rf"(msg_{_ULID})(\.out)?:2,")
_TENANT: Final = re.compile(rf"ten_{_ULID}")
_IDENTITY: Final = re.compile(rf"idn_{_ULID}")


def relative_path(key: str) -> tuple[str, str]:
    """(directory below the root, file name) of a key. Raises InvalidKey."""
    mail = _MAIL_KEY.fullmatch(key)
    if mail is not None:
        tenant, identity, received, sent = mail.groups()
        name = f"{received}:2," if received else f"{sent}.out:2,"
        return f"{MAIL}/{tenant}/{identity}/cur", name
    directory, _, name = check_key(key).rpartition("/")
    return (f"{OBJECTS}/{directory}" if directory else OBJECTS), name


def path_under(root: str, key: str) -> tuple[str, str]:
    """(absolute directory, absolute path) of a key, past both gates: components, and staying under `root`."""
    directory, name = relative_path(key)
    path = f"{root}/{directory}/{name}"
    # Second gate. The first leaves nothing for it to catch; it stands in case the first is ever loosened.
    if os.path.normpath(path) != path:
        raise InvalidKey
    return f"{root}/{directory}", path


def mail_key(tenant: str, identity: str, name: str) -> str | None:
    """The key of a file in `cur`, or None for a file that is not ours. Inverse of `relative_path`."""
    mail = _MAIL_NAME.fullmatch(name)
    if mail is None:
        return None
    message, out = mail.groups()
    base = f"t/{tenant}/i/{identity}"
    return f"{base}/out/{message}.eml" if out else f"{base}/m/{message}/raw.eml"


def is_tenant(name: str) -> bool:
    return _TENANT.fullmatch(name) is not None


def is_identity(name: str) -> bool:
    return _IDENTITY.fullmatch(name) is not None


def identity_directory(tenant: str, identity: str) -> str:
    """The Maildir of an identity, below the root. Raises InvalidKey for anything but two ids."""
    if not (is_tenant(tenant) and is_identity(identity)):
        raise InvalidKey
    return f"{MAIL}/{tenant}/{identity}"


def address_path(domain: str, local: str) -> tuple[str, str]:
    """(directory below the root, name) of an address's link. What is unsafe in a file name is percent-encoded.

    Raises InvalidKey for an empty or overlong part.
    """
    return f"{MAIL}/{BY_ADDRESS}/{_file_name(domain)}", _file_name(local)


def _file_name(text: str) -> str:
    name = quote(text, safe="+=", errors="surrogatepass")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if not 0 < len(name) <= MAX_NAME_BYTES:
        raise InvalidKey
    return name
