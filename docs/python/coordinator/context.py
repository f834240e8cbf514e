"""What a client is given beforehand: the context file with its pins, and its key.

Both decide whom the client trusts and who it is, so a file that somebody else may change or
read is refused.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import ed25519
from .handshake import Pins
from .text import inert

MAX_CONTEXT = 64 << 10
SEED_BYTES = 32
_KEYS = frozenset(("name", "socket", "quic", "coordinator_id", "authority", "witness_id", "witness_public_key", "key_file",
                   "agent", "owner"))


class BadContext(Exception):
    """What is wrong with a context or key file, and where. It quotes nothing of a key."""


@dataclass(frozen=True)
class Context:
    """One coordinator: where it listens, how it is known, and the key that speaks to it."""

    path: Path
    name: str
    socket: Path
    pins: Pins
    key: ed25519.Key


def read_owned(path: Path, limit: int, forbidden: int) -> bytes:
    """The whole of a regular file of ours that has none of the forbidden mode bits. A file that
    cannot be opened gives the system's own error."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise BadContext(f"{path}: not a regular file of this user")
        if about.st_mode & forbidden:
            raise BadContext(f"{path}: mode {stat.S_IMODE(about.st_mode):04o} is open to others; run chmod 600 on it")
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise BadContext(f"{path}: larger than {limit} bytes")
    return raw


def _read(path: Path, limit: int, forbidden: int) -> bytes:
    try:
        return read_owned(path, limit, forbidden)
    except OSError as e:
        raise BadContext(f"{path}: {e.strerror}") from None


def _hex(path: Path, values: dict[str, Any], name: str, prefix: str, size: int) -> bytes:
    """A value such as "sha256:<64 hex>": lowercase, whole, and not all zero."""
    text = values.get(name)
    digits = text[len(prefix):] if isinstance(text, str) and text.startswith(prefix) else ""
    if len(digits) != 2 * size or set(digits) - set("0123456789abcdef") or not any(raw := bytes.fromhex(digits)):
        raise BadContext(f"{path}: {name}: want {prefix}{2 * size} lowercase hex digits")
    return raw


def load(path: str | Path) -> Context:
    """Reads a context file and the key that it names. Relative paths count from its directory."""
    path = Path(path).absolute()
    raw = _read(path, MAX_CONTEXT, 0o022)
    try:
        if len(raw) == SEED_BYTES:  # a key named by mistake is not to be quoted from
            raise ValueError
        values = tomllib.loads(raw.decode())
    except ValueError:
        raise BadContext(f"{path}: not a context file") from None
    if unknown := set(values) - _KEYS:
        raise BadContext(f"{path}: unknown key {inert(min(unknown))}")
    if not isinstance(values.get("socket"), str) or "quic" in values:
        raise BadContext(f"{path}: this client speaks over a Unix socket only, and the context names none")
    if not isinstance(values.get("key_file"), str):
        raise BadContext(f"{path}: this client needs a key_file")
    pins = Pins(
        coordinator_id=_hex(path, values, "coordinator_id", "", 16), authority=_hex(path, values, "authority", "sha256:", 32),
        witness_id=_hex(path, values, "witness_id", "", 16),
        witness_public_key=_hex(path, values, "witness_public_key", "ed25519:", 32))
    if not ed25519.check_public_key(pins.witness_public_key):
        raise BadContext(f"{path}: witness_public_key: not a usable key")
    key = load_key(path.parent / values["key_file"])
    return Context(path=path, name=str(values.get("name", "")), socket=path.parent / values["socket"], pins=pins, key=key)


def load_key(path: Path) -> ed25519.Key:
    """The key in a file of 32 bytes that nobody else may read."""
    seed = _read(path, SEED_BYTES, 0o077)
    if len(seed) != SEED_BYTES:
        raise BadContext(f"{path}: a key file holds exactly {SEED_BYTES} bytes")
    return ed25519.Key(seed)
