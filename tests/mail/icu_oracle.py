"""Unicode's own data as the ICU library of the system tells it: the oracle of, and the source for, `confusables_data`.

`python tests/mail/icu_oracle.py > src/postroom/mail/confusables_data.py` writes the module again, after an
upgrade of ICU.
"""

from __future__ import annotations

import ctypes
import json
import sys
import unicodedata
from collections.abc import Iterator

_HEADER = '''"""Tables of `confusables`, generated from Unicode {version} data; not edited by hand.

`PROTOTYPES` gives, for an ASCII prototype of UTS #39's confusables, the code points that look like it. `SCRIPTS`
gives runs of code points with the scripts of their augmented Script_Extensions (UTS #39 §5.1); what is in no run is
Common or Inherited, which is compatible with every script. Numbers are hexadecimal; a run is `first-last`.
"""

from typing import Final

UNICODE_VERSION: Final = "{version}"
'''


class Icu:
    """The few calls of ICU that are needed, by their versioned names."""

    def __init__(self, uc: ctypes.CDLL, i18n: ctypes.CDLL, suffix: str) -> None:
        self._uc, self._i18n, self._suffix = uc, i18n, suffix
        status = ctypes.c_int(0)
        opener = self._call(i18n, "uspoof_open")
        opener.restype = ctypes.c_void_p
        self._spoof = ctypes.c_void_p(opener(ctypes.byref(status)))
        if status.value > 0:
            raise OSError("ICU has no spoof checker")

    def _call(self, library: ctypes.CDLL, name: str) -> ctypes._NamedFuncPointer:
        return getattr(library, name + self._suffix)  # type: ignore[no-any-return] # ctypes types its functions by name

    def unicode_version(self) -> str:
        out = (ctypes.c_uint8 * 4)()
        self._call(self._uc, "u_getUnicodeVersion")(out)
        return f"{out[0]}.{out[1]}"

    def skeleton(self, text: str) -> str:
        """UTS #39 skeleton: NFD, drop ignorables, prototypes, NFD."""
        units = text.encode("utf-16-le", "surrogatepass")
        source = (ctypes.c_uint16 * (len(units) // 2)).from_buffer_copy(units)
        out = (ctypes.c_uint16 * 512)()
        status = ctypes.c_int(0)
        length = self._call(self._i18n, "uspoof_getSkeleton")(
            self._spoof, 0, source, len(source), out, 512, ctypes.byref(status)
        )
        if status.value > 0:
            raise ValueError("no skeleton")
        return bytes(out)[: length * 2].decode("utf-16-le", "surrogatepass")

    def scripts(self, char: int) -> frozenset[str]:
        """Short names of the character's Script_Extensions."""
        out = (ctypes.c_int * 64)()
        status = ctypes.c_int(0)
        count = self._call(self._uc, "uscript_getScriptExtensions")(char, out, 64, ctypes.byref(status))
        name = self._call(self._uc, "uscript_getShortName")
        name.restype = ctypes.c_char_p
        return frozenset(name(out[i]).decode() for i in range(count))


def load() -> Icu | None:
    """ICU of the system, or None where there is none."""
    for version in range(90, 60, -1):
        try:
            return Icu(
                ctypes.CDLL(f"libicuuc.so.{version}"), ctypes.CDLL(f"libicui18n.so.{version}"), suffix=f"_{version}"
            )
        except OSError:
            continue
    return None


_AUGMENT = {
    "Hani": ("Hanb", "Jpan", "Kore"),
    "Hira": ("Jpan",),
    "Kana": ("Jpan",),
    "Hang": ("Kore",),
    "Bopo": ("Hanb",),
}


def augmented(scripts: frozenset[str]) -> frozenset[str]:
    """UTS #39 §5.1: writing systems that are written in several scripts count as scripts of their own."""
    return scripts.union(*(_AUGMENT.get(script, ()) for script in scripts))


def code_points() -> Iterator[int]:
    for point in range(0x80, 0x110000):
        if not 0xD800 <= point <= 0xDFFF:
            yield point


def runs(points: list[int]) -> str:
    out: list[str] = []
    first = last = -2
    for point in [*points, -9]:
        if point == last + 1:
            last = point
            continue
        if first >= 0:
            out.append(f"{first:x}" if first == last else f"{first:x}-{last:x}")
        first = last = point
    return " ".join(out)


def prototypes(icu: Icu) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for point in range(0x21, 0x110000):
        char = chr(point)
        if 0xD800 <= point <= 0xDFFF or unicodedata.normalize("NFD", char) != char:
            continue  # decomposed first, so never looked up
        skeleton = icu.skeleton(char)
        if skeleton and skeleton != char and skeleton.isascii() and skeleton.isprintable():
            found.setdefault(skeleton, []).append(point)
    return found


def script_runs(icu: Icu) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"Latn": [*range(0x41, 0x5B), *range(0x61, 0x7B)]}
    for point in code_points():
        scripts = icu.scripts(point)
        if not scripts & {"Zyyy", "Zinh", "Zzzz"}:
            found.setdefault(" ".join(sorted(augmented(scripts))), []).append(point)
    return found


def _table(name: str, rows: dict[str, list[int]]) -> str:
    lines = [f"\n{name}: Final[tuple[tuple[str, str], ...]] = ("]
    for key in sorted(rows):
        text = runs(sorted(rows[key]))
        quoted = json.dumps(key)
        pieces: list[str] = []
        while len(text) > 100:
            cut = text.rindex(" ", 0, 100) + 1
            pieces.append(text[:cut])
            text = text[cut:]
        pieces.append(text)
        if len(pieces) == 1:
            lines.append(f'    ({quoted}, "{pieces[0]}"),')
        else:
            lines.append("    (")
            lines.append(f"        {quoted},")
            lines.extend(f'        "{piece}"' for piece in pieces[:-1])
            lines.append(f'        "{pieces[-1]}",')
            lines.append("    ),")
    lines.append(")")
    return "\n".join(lines)


if __name__ == "__main__":
    library = load()
    if library is None:
        sys.exit("no ICU library was found")
    sys.stdout.write(_HEADER.format(version=library.unicode_version()))
    sys.stdout.write(_table("PROTOTYPES", prototypes(library)) + "\n")
    sys.stdout.write(_table("SCRIPTS", script_runs(library)) + "\n")
