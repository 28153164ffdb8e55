"""Texts and numbers that a file format may stumble over."""

from __future__ import annotations

import random
from typing import Any

ODD = "\0\t\n\r\x1b\x1f\x7f\x85\xa0\u2028\ufeff\ufffe\uffff\U0001f600\"'\\|<>&`*_#.,:;= -[]{}"

SIZES = (0, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**40)

FLOATS = (0.0, -0.0, 0.1, 1e16, 1e-7, 5e-324, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf"))


def odd_text(rng: random.Random, least: int = 0, most: int = 10) -> str:
    """Return a text of ``least`` to ``most`` characters, in half of all cases few: control characters, marks, any."""

    def character() -> str:
        code = rng.choice((rng.randrange(128), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))
        return rng.choice((chr(code), rng.choice(ODD)))

    return "".join(character() for _ in range(rng.choice((least, rng.randint(least, most)))))


def odd_value(rng: random.Random, leaves: int = 8) -> Any:
    """Return what JSON can hold, or nearly: ``None``, a truth value, a number or a text, or some of them nested."""
    kind = rng.randrange(7)
    if leaves < 2 or kind < 5:
        number = rng.choice((1, -1)) * rng.choice((*SIZES, rng.getrandbits(70)))
        real = rng.choice((*FLOATS, rng.uniform(-10, 10), rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300)))
        return rng.choice((None, rng.random() < 0.5, number, real, odd_text(rng)))
    inner = [odd_value(rng, leaves // 2) for _ in range(rng.randint(0, 3))]
    return inner if kind == 5 else {odd_text(rng): value for value in inner}
