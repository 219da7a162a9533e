"""Crockford's base 32 in lower case, in which tokens in local parts are written: without i, l, o and u."""

from typing import Final

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
CHARS: Final = "0-9a-hjkmnp-tv-z"
"""The alphabet within a character class of a regular expression."""

_VALUES: Final = {char: value for value, char in enumerate(ALPHABET)}


def encode(number: int) -> str:
    """The digits of a number above 0, without leading zeros: a number has one spelling. Nothing for 0."""
    digits = []
    while number:
        number, value = divmod(number, 32)
        digits.append(ALPHABET[value])
    return "".join(reversed(digits))


def decode(digits: str) -> int:
    """Inverse of `encode`. Raises KeyError for a character that is no digit."""
    number = 0
    for digit in digits:
        number = number * 32 + _VALUES[digit]
    return number


def of_octets(octets: bytes) -> str:
    """All bits of a whole number of fives of octets, eight digits for each five."""
    if len(octets) % 5:
        raise ValueError("octets come in fives")
    number = int.from_bytes(octets, "big")
    return "".join(ALPHABET[number >> shift & 31] for shift in range(8 * len(octets) - 5, -5, -5))
