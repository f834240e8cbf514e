"""Ed25519 as the protocol wants it: strict RFC 8032 (protocol.md §5.1).

A verifier refuses what most libraries let through: an A or R that is not the canonical
encoding of its point, or a point of small order, which anybody can sign for. It refuses an S
of L or more and checks the equation without the cofactor. The vectors hold it to all of that.

This is plain arithmetic on Python's integers, so the time that `sign` takes depends on the
secret. That is sound for what it is used for here: one signature for each connection over a
Unix socket, whose other end runs as the same user and could read the key file outright. A
client that signs for a peer across a network takes a library that runs in constant time, or a
key agent, and keeps `verify`, which touches nothing secret.
"""

from __future__ import annotations

import hashlib

# A point in extended coordinates: x = X/Z, y = Y/Z, x*y = T/Z.
Point = tuple[int, int, int, int]

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)  # of -1
_NEUTRAL: Point = (0, 1, 1, 0)


def _add(a: Point, b: Point) -> Point:
    """The sum of two points, which may be equal: the formula is complete."""
    p = (a[1] - a[0]) * (b[1] - b[0]) % _P
    q = (a[1] + a[0]) * (b[1] + b[0]) % _P
    r = 2 * _D * a[3] * b[3] % _P
    s = 2 * a[2] * b[2] % _P
    e, f, g, h = q - p, s - r, s + r, q + p
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: Point) -> Point:
    """scalar times point, from the highest bit down."""
    total = _NEUTRAL
    for bit in bin(scalar)[2:]:
        total = _add(total, total)
        if bit == "1":
            total = _add(total, point)
    return total


def _same(a: Point, b: Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % _P == 0 and (a[1] * b[2] - b[1] * a[2]) % _P == 0


def _encode(point: Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _decode(raw: bytes) -> Point | None:
    """The point that raw is the one canonical encoding of, None when it is none."""
    word = int.from_bytes(raw, "little")
    sign, y = word >> 255, word & (1 << 255) - 1
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (x == 0 and sign):  # off the curve, or minus zero
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _strict(raw: bytes) -> Point | None:
    """_decode, and None for the eight points of small order too."""
    point = _decode(raw)
    if point is None or _same(_times(8, point), _NEUTRAL):
        return None
    return point


def _base() -> Point:
    point = _decode((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    assert point is not None
    return point


_BASE = _base()


def _number(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


def check_public_key(raw: bytes) -> bool:
    """Whether raw is a usable public key: canonical and of no small order."""
    return len(raw) == 32 and _strict(raw) is not None


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether signature is that of message under public, by the strict reading."""
    if len(public) != 32 or len(signature) != 64:
        return False
    a, r = _strict(public), _strict(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if a is None or r is None or s >= _ORDER:
        return False
    k = _number(signature[:32], public, message) % _ORDER
    return _same(_times(s, _BASE), _add(r, _times(k, a)))


class Key:
    """A 32-byte seed that signs. Printed, it shows its public half."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 32:
            raise ValueError("a seed has 32 bytes")
        wide = hashlib.sha512(seed).digest()
        self._scalar = int.from_bytes(wide[:32], "little") & ((1 << 254) - 8) | 1 << 254
        self._prefix = wide[32:]
        self.public = _encode(_times(self._scalar, _BASE))

    def sign(self, message: bytes) -> bytes:
        """The one signature of message under this key."""
        r = _number(self._prefix, message) % _ORDER
        commitment = _encode(_times(r, _BASE))
        k = _number(commitment, self.public, message)
        return commitment + ((r + k * self._scalar) % _ORDER).to_bytes(32, "little")

    def __repr__(self) -> str:
        return f"ed25519:{self.public.hex()}"
