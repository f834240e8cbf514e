"""Bytes: the outer envelope, TLV bodies and positional values (protocol.md §2).

A type states its layout once, one line for each field, and is encoded and decoded by it: what
a decoder refuses, its encoder refuses too. Caps come before memory: a length or a count is
held against its cap and against the bytes that are there before anything is made of it.

Nothing here knows a message, opens a socket or reads a clock.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar, dataclass_transform

MAX_FIELD_ID = 2**31 - 1  # §2.1 [D-2]
MAX_FIELDS = 128
_BYTES = 4  # the only wire type


class ProtocolError(Exception):
    """The peer broke the protocol: the connection is closed. code is that of §13."""

    code = 4


class Malformed(ProtocolError):
    """Bytes that no sender of this protocol sends. The text holds none of them."""

    code = 3


class TooLarge(ProtocolError):
    """A length that is zero or above its cap."""

    code = 2


class Reader:
    """Takes positional values off the front of raw, one behind the other (§2.2)."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next count bytes, which must be there."""
        if count > len(self._raw) - self._at:
            raise Malformed("a value ends too early")
        self._at += count
        return self._raw[self._at - count : self._at]

    def uint(self, width: int) -> int:
        """A big-endian integer of width bytes."""
        return int.from_bytes(self.take(width), "big")

    def close(self) -> None:
        """A nested value consumes the whole of its field."""
        if self._at != len(self._raw):
            raise Malformed("bytes behind a value")


T = TypeVar("T")


class Value(Generic[T]):
    """One kind of value, in the two forms that it has: an image inside other values, and the
    value of a TLV field, which is the same but for str and bytes."""

    def image(self, value: T) -> bytes:
        """The positional form (§2.2)."""
        raise NotImplementedError

    def parse(self, reader: Reader) -> T:
        """Reads the positional form."""
        raise NotImplementedError

    def field(self, value: T) -> bytes:
        """The form at the top level of a TLV body [D-3]."""
        return self.image(value)

    def of_field(self, raw: bytes) -> T:
        """Reads what field writes, and all of it."""
        reader = Reader(raw)
        value = self.parse(reader)
        reader.close()
        return value


class UInt(Value[int]):
    """A big-endian integer of fixed width between low and high."""

    def __init__(self, width: int, low: int = 0, high: int | None = None, also: int | None = None) -> None:
        self._width, self._low, self._also = width, low, also
        self._high = (1 << 8 * width) - 1 if high is None else high

    def _check(self, value: int) -> int:
        if not self._low <= value <= self._high and value != self._also:
            raise Malformed("a number out of its range")
        return value

    def image(self, value: int) -> bytes:
        return self._check(value).to_bytes(self._width, "big")

    def parse(self, reader: Reader) -> int:
        return self._check(reader.uint(self._width))


class SInt32(Value[int]):
    """An i32 in two's complement."""

    def image(self, value: int) -> bytes:
        return value.to_bytes(4, "big", signed=True)

    def parse(self, reader: Reader) -> int:
        return int.from_bytes(reader.take(4), "big", signed=True)


class Flag(Value[bool]):
    """A u8 that is 0 or 1."""

    def image(self, value: bool) -> bytes:
        return b"\1" if value else b"\0"

    def parse(self, reader: Reader) -> bool:
        raw = reader.take(1)
        if raw > b"\1":
            raise Malformed("a bool that is neither 0 nor 1")
        return raw == b"\1"


class Fixed(Value[bytes]):
    """Exactly width bytes, not all zero where they are an id or a nonce."""

    def __init__(self, width: int, nonzero: bool = False) -> None:
        self._width, self._nonzero = width, nonzero

    def _check(self, value: bytes) -> bytes:
        if len(value) != self._width:
            raise Malformed("a wrong width")
        if self._nonzero and not any(value):
            raise Malformed("zeros where an id or a nonce belongs")
        return value

    def image(self, value: bytes) -> bytes:
        return self._check(value)

    def parse(self, reader: Reader) -> bytes:
        return self._check(reader.take(self._width))


class Blob(Value[bytes]):
    """Up to cap bytes. As a field they stand there raw, inside a value behind a u32 length;
    prefixed keeps that length in a field too, as the two frames of the proof do (§5.2)."""

    def __init__(self, cap: int, prefixed: bool = False) -> None:
        self._cap, self._prefixed = cap, prefixed

    def _check(self, length: int) -> int:
        if length > self._cap:
            raise Malformed("a length over its cap")
        return length

    def image(self, value: bytes) -> bytes:
        return self._check(len(value)).to_bytes(4, "big") + value

    def parse(self, reader: Reader) -> bytes:
        return reader.take(self._check(reader.uint(4)))

    def field(self, value: bytes) -> bytes:
        if self._prefixed:
            return self.image(value)
        self._check(len(value))
        return value

    def of_field(self, raw: bytes) -> bytes:
        if self._prefixed:
            return super().of_field(raw)
        self._check(len(raw))
        return raw


class Text(Value[str]):
    """A Blob that is UTF-8."""

    def __init__(self, cap: int, prefixed: bool = False) -> None:
        self._blob = Blob(cap, prefixed)

    @staticmethod
    def _text(raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise Malformed("text that is not UTF-8") from None

    def image(self, value: str) -> bytes:
        return self._blob.image(value.encode())

    def parse(self, reader: Reader) -> str:
        return self._text(self._blob.parse(reader))

    def field(self, value: str) -> bytes:
        return self._blob.field(value.encode())

    def of_field(self, raw: bytes) -> str:
        return self._text(self._blob.of_field(raw))


class Maybe(Value[T | None]):
    """A u8 that says whether there is one, and the value if so (§2.2)."""

    def __init__(self, inner: Value[T]) -> None:
        self._inner = inner

    def image(self, value: T | None) -> bytes:
        return b"\0" if value is None else b"\1" + self._inner.image(value)

    def parse(self, reader: Reader) -> T | None:
        return self._inner.parse(reader) if Flag().parse(reader) else None


class Listed(Value[Sequence[T]]):
    """A u16 count of at most cap, and that many values."""

    def __init__(self, inner: Value[T], cap: int) -> None:
        self._inner, self._cap = inner, cap

    def image(self, value: Sequence[T]) -> bytes:
        if len(value) > self._cap:
            raise Malformed("a list over its cap")
        return len(value).to_bytes(2, "big") + b"".join(self._inner.image(item) for item in value)

    def parse(self, reader: Reader) -> tuple[T, ...]:
        count = reader.uint(2)
        if count > self._cap:
            raise Malformed("a list over its cap")
        return tuple(self._inner.parse(reader) for _ in range(count))


class Sized(Value[T]):
    """A u32 length of at most cap, and exactly one value of that length."""

    def __init__(self, inner: Value[T], cap: int) -> None:
        self._inner, self._blob = inner, Blob(cap)

    def image(self, value: T) -> bytes:
        return self._blob.image(self._inner.image(value))

    def parse(self, reader: Reader) -> T:
        inside = Reader(self._blob.parse(reader))
        value = self._inner.parse(inside)
        inside.close()
        return value


@dataclasses.dataclass(frozen=True)
class _Wire:
    """What a field of a layout says of itself."""

    number: int
    value: Value[Any]
    optional: bool


def wire(number: int, value: Value[Any], *, default: Any = dataclasses.MISSING) -> Any:
    """A field of a layout: its number in a TLV body, its place in an image. One with a default
    may be absent."""
    said = {"wire": _Wire(number, value, default is not dataclasses.MISSING)}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=said)
    return dataclasses.field(default=default, metadata=said)


@functools.cache
def _layout(kind: type[Any]) -> tuple[tuple[str, _Wire], ...]:
    return tuple((f.name, f.metadata["wire"]) for f in dataclasses.fields(kind) if "wire" in f.metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
class Image:
    """A record whose fields follow each other in an image."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def check(self) -> None:
        """What must hold between the fields; raises Malformed."""

    def image(self) -> bytes:
        """The positional form."""
        self.check()
        return b"".join(w.value.image(getattr(self, name)) for name, w in _layout(type(self)))

    @classmethod
    def parse(cls, reader: Reader) -> Self:
        """Reads the positional form."""
        made = cls(**{name: w.value.parse(reader) for name, w in _layout(cls)})
        made.check()
        return made

    @classmethod
    def of_image(cls, raw: bytes) -> Self:
        """Reads the whole of raw."""
        return Struct(cls).of_field(raw)


I = TypeVar("I", bound=Image)


class Struct(Value[I]):
    """An Image as a value of other layouts."""

    def __init__(self, kind: type[I]) -> None:
        self._kind = kind

    def image(self, value: I) -> bytes:
        return value.image()

    def parse(self, reader: Reader) -> I:
        return self._kind.parse(reader)


def varint(number: int) -> bytes:
    """Unsigned LEB128, in as few bytes as it takes."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    """A varint at body[at:] and where it ends. None here takes more than five bytes [D-2]."""
    number = 0
    for count in range(5):
        if at + count >= len(body):
            raise Malformed("a varint ends too early")
        byte = body[at + count]
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if byte == 0 and count:
                raise Malformed("a varint that is not minimal")
            return number, at + count + 1
    raise Malformed("a varint that is too long")


Field = tuple[int, bytes]


def read_fields(body: bytes) -> list[Field]:
    """The fields of a TLV body in the order in which they stand (§2.1)."""
    found: list[Field] = []
    seen: set[int] = set()
    at = 0
    while at < len(body):
        number, at = read_varint(body, at)
        if not 0 < number <= MAX_FIELD_ID or number in seen or len(found) == MAX_FIELDS:
            raise Malformed("a field id out of range or given twice, or too many fields")
        if at >= len(body) or body[at] != _BYTES:
            raise Malformed("a wire type that is not BYTES")
        length, at = read_varint(body, at + 1)
        if length > len(body) - at:
            raise Malformed("a field ends too early")
        found.append((number, body[at : at + length]))
        seen.add(number)
        at += length
    return found


def write_fields(fields: Sequence[Field]) -> bytes:
    """A TLV body: ascending ids, each once."""
    return b"".join(varint(n) + bytes((_BYTES,)) + varint(len(v)) + v for n, v in sorted(fields))


def canonical(body: bytes) -> bytes:
    """Any TLV body re-encoded as §8 wants it for a digest, unknown fields included."""
    return write_fields(read_fields(body))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
class Message:
    """A record whose fields are those of a TLV body."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def check(self) -> None:
        """What must hold between the fields; raises Malformed."""

    def known(self) -> list[Field]:
        """The fields as they go into a body. An absent one is None."""
        self.check()
        said = ((w, getattr(self, name)) for name, w in _layout(type(self)))
        return [(w.number, w.value.field(v)) for w, v in said if not (w.optional and v is None)]

    def body(self) -> bytes:
        """The canonical TLV body."""
        return write_fields(self.known())

    @classmethod
    def of_body(cls, body: bytes) -> Self:
        """Reads a whole body. Fields come in any order, and unknown ones are skipped."""
        return cls.of_fields(read_fields(body))

    @classmethod
    def of_fields(cls, fields: Sequence[Field]) -> Self:
        """of_body of what read_fields gave."""
        given = dict(fields)
        said: dict[str, Any] = {}
        for name, w in _layout(cls):
            if w.number in given:
                said[name] = w.value.of_field(given[w.number])
            elif not w.optional:
                raise Malformed("a required field is missing")
        made = cls(**said)
        made.check()
        return made


def ascending(keys: Sequence[Any]) -> bool:
    """Whether each is above the one before."""
    return all(a < b for a, b in zip(keys, keys[1:]))


U8, U16, U32, U64 = UInt(1), UInt(2), UInt(4), UInt(8)
COUNT32, COUNT64 = UInt(4, 1), UInt(8, 1)  # never zero
ID, HASH, NONCE, SIGNATURE = Fixed(16, True), Fixed(32), Fixed(32, True), Fixed(64)
BOOL = Flag()
