import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.blobs import BlobMissing, InvalidKey, MarkerMismatch, StorageError, StorageFull, check_key
from postroom.blobs.layout import address_path, identity_directory, mail_key, path_under, relative_path
from postroom.blobs.store import MAX_KEY_CHARS, check_prefix

ROOT = "/srv/data"
ULID = st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=25, max_size=25).map(lambda rest: "0" + rest)
COMPONENT = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z")
KEYS = st.lists(COMPONENT, min_size=1, max_size=8).map("/".join)


def mail_keys(kind: str) -> st.SearchStrategy[str]:
    form = "t/ten_{}/i/idn_{}/m/msg_{}/raw.eml" if kind == "raw" else "t/ten_{}/i/idn_{}/out/msg_{}.eml"
    return st.tuples(ULID, ULID, ULID).map(lambda ulids: form.format(*ulids))


ANY_KEY = st.one_of(KEYS, mail_keys("raw"), mail_keys("out"))
HOSTILE = st.text(st.sampled_from("./\\a\0\n-_~%:é\udc80"), max_size=40)


@pytest.mark.covers("mail-server:E2")
@given(st.one_of(HOSTILE, st.text(max_size=60)))
def test_no_text_escapes_from_the_root(text: str) -> None:
    try:
        directory, path = path_under(ROOT, text)
    except InvalidKey:
        return
    assert os.path.normpath(path) == path
    assert path.startswith((ROOT + "/mail/", ROOT + "/objects/"))
    assert os.path.dirname(path) == directory


@pytest.mark.covers("mail-server:E2")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        "a/..",
        "a/../../b",
        "a//b",
        "a/./b",
        "a/",
        ".hidden",
        "a/.b",
        "a\0b",
        "a\n",
        "a/b\n",
        "a b",
        "é",
        "a\\b",
        "a" * 129,
        "/".join("a" * 17),
        "/".join(["a" * 100] * 6),
    ],
)
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(InvalidKey):
        check_key(text)
    with pytest.raises(InvalidKey):
        relative_path(text)


@given(ANY_KEY)
def test_keys_pass_within_their_length(key: str) -> None:
    assert len(key) > MAX_KEY_CHARS or check_key(key) == key


@given(ANY_KEY, ANY_KEY)
def test_different_keys_have_different_paths(one: str, other: str) -> None:
    assert (relative_path(one) == relative_path(other)) == (one == other)


@pytest.mark.covers("decisions:B5", "mail-server:E1")
@given(ULID, ULID, ULID)
def test_mail_has_a_fixed_name_in_the_maildir_of_its_identity(tenant: str, identity: str, message: str) -> None:
    owner = f"ten_{tenant}", f"idn_{identity}"
    raw = f"t/{owner[0]}/i/{owner[1]}/m/msg_{message}/raw.eml"
    out = f"t/{owner[0]}/i/{owner[1]}/out/msg_{message}.eml"
    directory = f"mail/{owner[0]}/{owner[1]}/cur"
    assert relative_path(raw) == (directory, f"msg_{message}:2,")
    assert relative_path(out)[0] == directory
    assert directory == identity_directory(*owner) + "/cur"
    for key in (raw, out):
        assert mail_key(*owner, relative_path(key)[1]) == key


def test_other_files_of_a_maildir_have_no_key() -> None:
    for name in ("msg_x:2,", "dovecot-uidlist", "msg_01J9Z3K8V4QW7X2M5N6P8R0T1Y:2,S", "msg_01J9Z3K8V4QW7X2M5N6P8R0T1Y"):
        assert mail_key("ten", "idn", name) is None


@pytest.mark.covers("decisions:B5", "mail-server:E2")
@given(st.text(max_size=64), st.text(max_size=64))
def test_addresses_stay_where_they_belong(domain: str, local: str) -> None:
    try:
        directory, name = address_path(domain, local)
    except InvalidKey:
        return
    path = f"{directory}/{name}"
    assert os.path.normpath(path) == path
    assert path.count("/") == 3
    assert path.startswith("mail/by-address/")
    assert "\0" not in path


def test_addresses_of_everyday_are_readable() -> None:
    assert address_path("agents.example", "ann.lee+x") == ("mail/by-address/agents.example", "ann.lee+x")
    assert address_path("agents.example", "a/b")[1] == "a%2Fb"
    assert address_path("agents.example", "..")[1] == "%2E."


def test_identity_directory_takes_ids_only() -> None:
    with pytest.raises(InvalidKey):
        identity_directory("by-address", "..")


def test_prefixes_are_whole_components() -> None:
    assert (check_prefix(""), check_prefix("t/a"), check_prefix("t/a/")) == ("", "t/a/", "t/a/")
    with pytest.raises(InvalidKey):
        check_prefix("../")


@pytest.mark.parametrize(
    "error", [StorageError("EIO"), StorageFull("ENOSPC"), BlobMissing("a/b"), InvalidKey(), MarkerMismatch("no_marker")]
)
def test_errors_survive_being_pickled(error: StorageError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.reason, str(copy)) == (type(error), error.reason, error.reason)
    assert vars(copy) == vars(error)
