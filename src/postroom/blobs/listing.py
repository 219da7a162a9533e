"""Keys of the store on disk, in order, without holding a large directory's names in memory."""

import heapq
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from . import layout

NAMES_AT_ONCE: Final = 10_000
"""Names of one directory that are held in memory; of a larger one they are read again for the next so many."""


def keys(root: str, below: str, after: str) -> Iterator[str]:
    """Those that start with `below`, which is empty or ends in ``/``, and follow `after`. Raises OSError."""
    return heapq.merge(_mail_keys(root, below, after), _object_keys(root, below, after))


def _object_keys(root: str, below: str, after: str) -> Iterator[str]:
    base = f"{root}/{layout.OBJECTS}"
    # No component on the way may be a link.
    if all(_is_directory(f"{base}/{below[:at]}") for at, octet in enumerate(below) if octet == "/"):
        yield from _walk(base, below, after)


def _mail_keys(root: str, below: str, after: str) -> Iterator[str]:
    mail = f"{root}/{layout.MAIL}"

    def tenants() -> Iterator[str]:
        return (t for t in _entries(mail) if layout.is_tenant(t) and _reaches(f"t/{t}/", below, after))

    for tenant in _in_order(tenants):
        yield from _tenants_mail_keys(mail, tenant, below, after)


def _tenants_mail_keys(mail: str, tenant: str, below: str, after: str) -> Iterator[str]:
    def identities() -> Iterator[str]:
        found = filter(layout.is_identity, _entries(f"{mail}/{tenant}"))
        return (i for i in found if _reaches(f"t/{tenant}/i/{i}/", below, after))

    for identity in _in_order(identities):

        def keys_of(identity: str = identity) -> Iterator[str]:
            names = _entries(f"{mail}/{tenant}/{identity}/cur")
            found = (layout.mail_key(tenant, identity, name) for name in names)
            return (key for key in found if key is not None and key.startswith(below) and key > after)

        yield from _in_order(keys_of)


def _walk(base: str, tree: str, after: str) -> Iterator[str]:
    """Keys of the plain tree, in order: a directory sorts by its name with the slash that follows it in a key."""

    def entries() -> Iterator[str]:
        with suppress(FileNotFoundError), os.scandir(f"{base}/{tree}") as found:
            for entry in found:
                key = tree + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if key + "/" > after or after.startswith(key + "/"):
                        yield key + "/"
                elif entry.is_file(follow_symlinks=False) and key > after:
                    yield key

    for key in _in_order(entries):
        if key.endswith("/"):
            yield from _walk(base, key, after)
        else:
            yield key


def _in_order(read: Callable[[], Iterator[str]]) -> Iterator[str]:
    """The texts that `read` yields, sorted; it is called again for every `NAMES_AT_ONCE`, so that no more are held."""
    last = ""
    while True:
        page = heapq.nsmallest(NAMES_AT_ONCE, (one for one in read() if one > last))
        yield from page
        if len(page) < NAMES_AT_ONCE:
            return
        last = page[-1]


def _entries(directory: str) -> Iterator[str]:
    """Names in a directory, as they come; none if it is missing or not a directory itself."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if _is_directory(directory):
            with os.scandir(directory) as found:
                for entry in found:
                    yield entry.name


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path.rstrip("/")).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _reaches(tree: str, below: str, after: str) -> bool:
    """Whether a tree of keys (`tree` ends in ``/``) can hold one that starts with `below` and follows `after`."""
    return (tree.startswith(below) or below.startswith(tree)) and (tree > after or after.startswith(tree))
