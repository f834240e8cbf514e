"""What a client remembers of a coordinator across its own restarts (protocol.md §4).

The highest authority that it has met, whether a snapshot has verified under it, the cut that
it has been shown, and the commands whose outcome it does not know. All of it is in one file,
replaced whole, and each change is merged into what the file then holds: several processes
may share it. A file that cannot be read is an error and never an empty memory, which would
forget the highest authority.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from .context import BadContext, read_owned
from .frames import SnapshotBegin
from .records import Certificate

VERSION = 1
MAX_BYTES = 16 << 20  # room for 30 commands of the largest size, or for thousands of usual ones


class BadMemory(Exception):
    """The file cannot be read or written as what it is."""


class LowerAuthority(Exception):
    """The server's authority is below one that this client has met."""


class Quarantined(Exception):
    """Two servers claim one authority, or claims that cannot both be. A person decides."""


class LostHistory(Exception):
    """What this client was shown is not in the history of this authority [D-26]."""


class Memory:
    """The memory of one coordinator beside a context file."""

    def __init__(self, directory: Path, coordinator: bytes) -> None:
        self.path = directory / f"python-authority.{coordinator.hex()}.json"
        self._closers: dict[Callable[[str], None], int] = {}  # of open connections, and their epochs
        with self._locked():
            self._seen = self._read()

    @contextlib.contextmanager
    def _locked(self) -> Generator[None, None, None]:
        """One process at a time."""
        fd = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _read(self) -> dict[str, Any]:
        try:
            seen: dict[str, Any] = json.loads(read_owned(self.path, MAX_BYTES, 0o077))
            if seen["version"] == VERSION and isinstance(seen["operations"], dict):
                return seen
        except FileNotFoundError:
            return {"version": VERSION, "operations": {}}
        except (BadContext, ValueError, KeyError, TypeError):
            pass
        raise BadMemory(f"{self.path}: not a memory of version {VERSION}; restore it, or remove it to trust this coordinator "
                        "as if for the first time")

    def _update(self, edit: Callable[[dict[str, Any]], None]) -> None:
        """Merges a change into the file. It is durable when this returns: file and directory."""
        with self._locked():
            seen = self._read()
            before = json.dumps(seen)
            try:
                edit(seen)
            finally:
                after = json.dumps(seen)
                if after != before:
                    self._replace(after)
                self._seen = seen

    def _replace(self, text: str) -> None:
        if len(text) > MAX_BYTES:
            raise BadMemory("too many commands whose outcome is not known; resume them first")
        temporary = self.path.with_suffix(".tmp")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, self.path)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    # --- the highest authority ---

    def accept(self, certificate: Certificate) -> bool:
        """Holds a certificate that has verified against the highest authority met, and remembers
        it when it is higher. Connections of a lower one are closed before this returns. It says
        whether a snapshot has verified under it already."""
        guard = certificate.guard()
        claim = {"epoch": guard.authority_epoch, "activation": guard.activation_sequence,
                 "incarnation": certificate.incarnation_id.hex(), "token_sha256": guard.fencing_token_sha256.hex()}
        self._update(lambda seen: _accept(seen, claim))
        for close, epoch in list(self._closers.items()):
            if epoch < guard.authority_epoch:
                close("superseded by a higher authority")
        return bool(self._seen.get("verified"))

    def attach(self, close: Callable[[str], None], epoch: int) -> None:
        """Names how an open connection is closed when a higher authority is met."""
        self._closers[close] = epoch

    def detach(self, close: Callable[[str], None]) -> None:
        """Forgets a connection that has ended."""
        self._closers.pop(close, None)

    # --- the cut ---

    @property
    def cut(self) -> tuple[int, int]:
        """The activation and the highest event sequence of it that this client was shown."""
        return _cut(self._seen)

    def shown(self, activation: int, sequence: int) -> None:
        """Raises the cut, durably."""
        if self.cut[0] == activation and self.cut[1] < sequence:
            self._update(lambda seen: _raise(seen, activation, sequence))

    def snapshot_verified(self, begin: SnapshotBegin, shown: tuple[int, int]) -> bool:
        """Makes an authority current: one whole snapshot has verified under it [D-44]. Says whether
        its history lacks what this client had been shown; the commands of that time are
        indeterminate then."""
        lost = lost_history(shown, begin)
        activation, base = begin.authority_guard.activation_sequence, begin.base_event_sequence

        def edit(seen: dict[str, Any]) -> None:
            if seen.get("authority", {}).get("epoch") != begin.authority_guard.authority_epoch:
                raise LowerAuthority("a higher authority was met meanwhile")
            seen["verified"] = True
            for operation in seen["operations"].values() if lost else ():
                operation["indeterminate"] = True
            if lost or _cut(seen)[0] != activation:
                seen["cut"] = [activation, base]
            _raise(seen, activation, base)

        self._update(edit)
        return lost

    # --- commands whose outcome is not known ---

    def begin(self, operation: bytes, kind: int, payload: bytes) -> None:
        """Makes a command durable before its first byte leaves."""

        def edit(seen: dict[str, Any]) -> None:
            command = {"kind": kind, "payload": payload.hex()}
            known = seen["operations"].setdefault(operation.hex(), command)
            if known.get("indeterminate"):
                raise LostHistory("the history in which this operation may have run was lost: it is not sent again")
            if {"kind": known["kind"], "payload": known["payload"]} != command:
                raise BadMemory("this operation was begun with another command")

        self._update(edit)

    def settle(self, operation: bytes, activation: int, sequence: int) -> None:
        """Forgets a command whose outcome is known, and raises the cut that its result shows."""

        def edit(seen: dict[str, Any]) -> None:
            seen["operations"].pop(operation.hex(), None)
            _raise(seen, activation, sequence)

        self._update(edit)

    def unresolved(self) -> list[tuple[bytes, int, bytes, bool]]:
        """OperationId, kind, payload, and whether its history was lost."""
        return [(bytes.fromhex(name), int(c["kind"]), bytes.fromhex(c["payload"]), bool(c.get("indeterminate")))
                for name, c in self._seen["operations"].items()]


def _accept(seen: dict[str, Any], claim: dict[str, Any]) -> None:
    """The rule of §4 for what a client refuses."""
    have = seen.get("authority")
    if "quarantine" in seen:
        raise Quarantined("two servers have claimed one authority; this coordinator stays refused until somebody has decided")
    if have is None or (claim["epoch"] > have["epoch"] and claim["activation"] > have["activation"]):
        seen["authority"], seen["verified"] = claim, False
        return
    if claim == have:
        return
    ours, theirs = (have["epoch"], have["activation"]), (claim["epoch"], claim["activation"])
    if theirs != ours and theirs[0] <= ours[0] and theirs[1] <= ours[1]:
        raise LowerAuthority(f"epoch {theirs[0]} activation {theirs[1]} is below epoch {ours[0]} activation {ours[1]} met before")
    seen["quarantine"] = claim
    raise Quarantined(f"two servers claim authority at epoch {theirs[0]} activation {theirs[1]}")


def _cut(seen: dict[str, Any]) -> tuple[int, int]:
    activation, sequence = seen.get("cut", (0, 0))
    return int(activation), int(sequence)


def _raise(seen: dict[str, Any], activation: int, sequence: int) -> None:
    """Raises the cut within its activation: into another one only a snapshot carries it."""
    if _cut(seen)[0] == activation:
        seen["cut"] = [activation, max(_cut(seen)[1], sequence)]


def lost_history(shown: tuple[int, int], begin: SnapshotBegin) -> bool:
    """Whether what a client was shown is missing in the history that a snapshot stands in [D-26]."""
    activation, sequence = shown
    bases = begin.activation_bases
    if shown == (0, 0):
        return False
    if bases is None or activation == begin.authority_guard.activation_sequence:
        return begin.base_event_sequence < sequence
    later = [b.base for b in bases if b.activation > activation]
    return all(b.activation != activation for b in bases) or bool(later and sequence > later[0])


