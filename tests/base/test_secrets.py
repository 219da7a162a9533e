import base64
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from postroom.base.secrets import (
    FILE_NAME,
    Source,
    ensure_secrets,
    load_secrets,
    master_slots,
    select_master_key,
    store_master_key,
)
from postroom.base.settings import SettingsError

A, B, C, D = (base64.b64encode(bytes([n]) * 32).decode() for n in range(1, 5))


def test_made_once_kept_and_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert ensure_secrets(data) == ("master_key", "key_pepper", "hash_key")
    first = load_secrets(data, {})
    assert ensure_secrets(data) == ()
    assert load_secrets(data, {}) == first
    assert len({first.master_key, first.key_pepper, first.hash_key}) == 3
    assert (data / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert data.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(data)) == [".secrets.lock", FILE_NAME]


def test_only_what_is_missing_is_made(tmp_path: Path) -> None:
    environ = {"POSTROOM_KEY_PEPPER": A}
    assert ensure_secrets(tmp_path, lambda n: b"\x09" * n, environ) == ("master_key", "hash_key")
    secrets = load_secrets(tmp_path, environ)
    assert (secrets.key_pepper, secrets.hash_key) == (b"\x01" * 32, b"\x09" * 32)
    assert ensure_secrets(tmp_path) == ("key_pepper",)
    assert load_secrets(tmp_path, {}).hash_key == b"\x09" * 32


def test_environment_then_file_reference_then_secrets_file(tmp_path: Path) -> None:
    ensure_secrets(tmp_path)
    (tmp_path / "pepper").write_text(B + "\n")
    environ = {
        "POSTROOM_KEY_PEPPER_FILE": str(tmp_path / "pepper"),
        "POSTROOM_HASH_KEY": C,
        "POSTROOM_HASH_KEY_FILE": "/nowhere",
    }
    secrets = load_secrets(tmp_path, environ)
    assert (secrets.key_pepper, secrets.hash_key) == (b"\x02" * 32, b"\x03" * 32)


def test_master_key_slots(tmp_path: Path) -> None:
    environ = {"POSTROOM_MASTER_KEY": A, "POSTROOM_MASTER_KEY_B": B, "POSTROOM_KEY_PEPPER": C, "POSTROOM_HASH_KEY": D}
    assert load_secrets(tmp_path, environ).master_key == b"\x01" * 32
    turned = load_secrets(tmp_path, environ | {"POSTROOM_MASTER_KEY_ACTIVE": "b"})
    assert (turned.master_key, turned.other_master_key) == (b"\x02" * 32, b"\x01" * 32)
    for wrong in (
        {"POSTROOM_MASTER_KEY_B": A},
        {"POSTROOM_MASTER_KEY_ACTIVE": "c"},
        {"POSTROOM_MASTER_KEY_B": "", "POSTROOM_MASTER_KEY_ACTIVE": "b"},
    ):
        with pytest.raises(SettingsError):
            load_secrets(tmp_path, environ | wrong)


def test_problems_name_all_and_show_none(tmp_path: Path) -> None:
    environ = {"POSTROOM_KEY_PEPPER": "canary", "POSTROOM_HASH_KEY_FILE": "/nowhere/canary2"}
    with pytest.raises(SettingsError) as caught:
        load_secrets(tmp_path, environ)
    assert sorted(line.partition(":")[0] for line in caught.value.problems) == [
        "POSTROOM_HASH_KEY",
        "POSTROOM_HASH_KEY_FILE",
        "POSTROOM_KEY_PEPPER",
        "POSTROOM_MASTER_KEY",
    ]
    assert "canary" not in str(caught.value)


def test_values_are_not_shown(tmp_path: Path) -> None:
    ensure_secrets(tmp_path)
    assert repr(load_secrets(tmp_path, {})) == "Secrets()"


@pytest.mark.parametrize("content", ['other = "x"\n', "hash_key = 5\n", "hash_key = \n"])
def test_spoilt_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(SettingsError):
        ensure_secrets(tmp_path)
    assert path.read_text() == content


def test_open_file_and_link_are_refused(tmp_path: Path) -> None:
    ensure_secrets(tmp_path)
    path = tmp_path / FILE_NAME
    path.chmod(0o640)
    with pytest.raises(SettingsError, match="0600"):
        load_secrets(tmp_path, {})
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="cannot be read"):
        ensure_secrets(tmp_path)


def test_base64_of_either_alphabet_with_or_without_padding(tmp_path: Path) -> None:
    value = bytes(range(224, 256))
    for text in (base64.urlsafe_b64encode(value).decode(), base64.b64encode(value).decode().rstrip("=")):
        environ = {"POSTROOM_MASTER_KEY": A, "POSTROOM_KEY_PEPPER": B, "POSTROOM_HASH_KEY": text}
        assert load_secrets(tmp_path, environ).hash_key == value


@pytest.mark.covers("security-privacy:A6.1", "security-privacy:A6.3")
def test_a_second_master_key_and_its_turn(tmp_path: Path) -> None:
    ensure_secrets(tmp_path)
    first = load_secrets(tmp_path, {})
    slots = master_slots(tmp_path, {})
    assert (slots.active, slots.inactive, slots.selector) == ("a", "b", Source.NOWHERE)
    assert slots.sources == {"a": Source.FILE, "b": Source.NOWHERE}
    store_master_key(tmp_path, "b", b"\x02" * 32)
    both = load_secrets(tmp_path, {})
    assert (both.master_key, both.other_master_key) == (first.master_key, b"\x02" * 32)
    select_master_key(tmp_path, "b")
    turned = load_secrets(tmp_path, {})
    assert (turned.master_key, turned.other_master_key) == (b"\x02" * 32, first.master_key)
    assert (turned.key_pepper, turned.hash_key) == (first.key_pepper, first.hash_key)
    assert master_slots(tmp_path, {}).selector is Source.FILE
    # The environment says more than the file.
    assert load_secrets(tmp_path, {"POSTROOM_MASTER_KEY_ACTIVE": "a"}).master_key == first.master_key
    outside = master_slots(tmp_path, {"POSTROOM_MASTER_KEY_ACTIVE": "a", "POSTROOM_MASTER_KEY_B": C})
    assert (outside.active, outside.selector, outside.sources["b"]) == ("a", Source.ENVIRONMENT, Source.ENVIRONMENT)
    assert outside.keys["b"] == b"\x03" * 32
    assert "\\x0" not in repr(outside)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    # Slot a was emptied on purpose; nothing fills it again. An emptied active slot is refused.
    text = (tmp_path / FILE_NAME).read_text().splitlines(True)
    (tmp_path / FILE_NAME).write_text("".join(line for line in text if not line.startswith("master_key =")))
    assert ensure_secrets(tmp_path) == ()
    assert load_secrets(tmp_path, {}).other_master_key is None
    (tmp_path / FILE_NAME).write_text("".join(line for line in text if not line.startswith("master_key_b =")))
    assert ensure_secrets(tmp_path) == ()
    with pytest.raises(SettingsError, match="POSTROOM_MASTER_KEY_B: missing"):
        load_secrets(tmp_path, {})


def test_whoever_changes_the_file_at_once_loses_nothing(tmp_path: Path) -> None:
    """And what somebody left half written, who was killed, goes."""
    left = tmp_path / f".{FILE_NAME}.12345"
    left.write_text("hash_key = ")
    work = [lambda: ensure_secrets(tmp_path), lambda: store_master_key(tmp_path, "b", b"\x02" * 32)] * 8
    work.append(lambda: select_master_key(tmp_path, "a"))
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(one) for one in work]:
            done.result(30)
    assert master_slots(tmp_path, {}).keys["b"] == b"\x02" * 32
    assert sorted(os.listdir(tmp_path)) == [".secrets.lock", FILE_NAME]


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_what_root_writes_is_the_servers(tmp_path: Path) -> None:
    """A command run by root replaces the file of a server that runs as somebody else."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    os.chown(data, 12345, 12346)
    ensure_secrets(data)
    store_master_key(data, "b", bytes([9]) * 32)
    select_master_key(data, "b")
    assert len(list(data.iterdir())) == 2
    assert {(path.stat().st_uid, path.stat().st_gid, path.stat().st_mode & 0o777) for path in data.iterdir()} == {
        (12345, 12346, 0o600)
    }
    os.chown(data / FILE_NAME, 23456, 23456)
    select_master_key(data, "a")
    assert (data / FILE_NAME).stat().st_uid == 23456, "as it was"
