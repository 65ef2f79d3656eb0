"""Bytes as a fault leaves them, for tests of what reads bytes."""

from __future__ import annotations

import random


def damaged(data: bytes, seed: int) -> bytes:
    """A few bytes changed, cut out, doubled or put in."""
    rng = random.Random(seed)
    out = bytearray(data)
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0 if at < len(out):
                out[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            case 1:
                del out[at : at + rng.randint(1, 4)]
            case 2:
                out[at:at] = out[at : at + rng.randint(1, 8)]
            case 3:
                out[at:at] = rng.randbytes(rng.randint(1, 3))
    return bytes(out)
