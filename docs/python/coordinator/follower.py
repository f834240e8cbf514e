"""A view that is whole and verified, or says that it is not (protocol.md §4, §9, §10).

It begins with a snapshot and goes on with events. A gap, and a lost connection is one, is told
before anything else; then it is healed by what is least: going on from the cut, a replay, a new
snapshot. Under another authority nothing is taken in before one of its snapshots has verified.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .codec import ProtocolError
from .connection import FIRST_PAUSE, MAX_PAUSE, Connection, ConnectionEnded, Options, Refused, describe, lasting
from .context import Context
from .frames import EVENT_REPLAY, Gap, GapReason
from .handshake import Untrusted
from .memory import LowerAuthority, Memory
from .records import AuthorityGuard, EventKind, ReplayEvent, SnapshotRecord
from .snapshot import Snapshot
from .stream import Subscription

MAX_HEALS = 8  # in a row, before the connection is given up
FLUSH_SECONDS = 5.0
_NO_REPLAY = (GapReason.RETENTION, GapReason.REVISION_MISMATCH)  # [D-12]
_ENDING = (GapReason.EPOCH_CHANGED, GapReason.GRANT_REVOKED)


@dataclass(frozen=True)
class Synced:
    """A snapshot has verified and is the view now. The changes that it brought follow one by one.
    lost: what was shown before is not in this history [D-26]."""

    epoch: int
    cut: int
    lost: bool


@dataclass(frozen=True)
class Change:
    """One object before and after; sequence is that of the event, None of a snapshot's change."""

    sequence: int | None
    before: SnapshotRecord | None
    after: SnapshotRecord | None


@dataclass(frozen=True)
class Paused:
    """The view may have missed something and is not current."""

    why: str


@dataclass(frozen=True)
class Healed:
    """Nothing is missing: the events went on, or were replayed."""

    how: str
    epoch: int


Update = Synced | Change | Paused | Healed
View = dict[tuple[int, bytes], SnapshotRecord]


class Follower:
    """Follows one coordinator. view is what updates have told, and current whether it may be
    believed now."""

    def __init__(self, context: Context, memory: Memory, options: Options, count: int | None = None,
                 sleep: Callable[[float], None] = time.sleep) -> None:
        self._context, self._memory, self._options, self._count, self._sleep = context, memory, options, count, sleep
        self.view: View = {}
        self.current = False
        self.connection: Connection | None = None
        self._guard: AuthorityGuard | None = None  # of the view; None before the first snapshot
        self._rights: tuple[int, bytes] = (0, b"")
        self._cut = 0
        self._doubtful = False  # nothing less than a snapshot heals
        self._heals = 0

    def updates(self) -> Iterator[Update]:
        """Every update, for ever. What another attempt does not change is raised: Untrusted,
        Quarantined, NotAccepted, a memory or a permission that is wrong."""
        pause = FIRST_PAUSE
        while True:
            why = ""
            try:
                for update in self._connected():
                    pause = FIRST_PAUSE if isinstance(update, Change) else pause
                    yield update
            except (ConnectionEnded, LowerAuthority, ProtocolError, Refused, Untrusted, OSError) as e:
                if lasting(e):
                    raise
                self._doubtful = self._doubtful or isinstance(e, (ProtocolError, Refused))
                why = describe(e)
            finally:
                self.current = False
                self._flush()
            yield Paused(why)
            self._sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, MAX_PAUSE)

    def _flush(self) -> None:
        """Makes the cut durable."""
        if self._guard is not None:
            self._memory.shown(self._guard.activation_sequence, self._cut)

    def _connected(self) -> Iterator[Update]:
        """One connection from beginning to end, which is an exception."""
        self.connection = connection = Connection(self._context, self._memory, self._options)
        try:
            rights = (connection.answer.negotiated_capabilities, connection.answer.workload_grant.effective_scope_bytes)
            if self._guard != connection.guard or self._rights != rights or self._doubtful:
                subscription = Subscription(connection, self._count)
                snap = subscription.snapshot(self._memory)
                self._rights = rights  # under which the cut is good [D-55]
                yield from self._synced(snap, subscription.live)
            else:
                self._doubtful = True  # until the coordinator has gone on from our cut
                subscription = Subscription.after(connection, self._cut, self._count)
                self._doubtful, self.current = False, True
                yield Healed("went on", connection.guard.authority_epoch)
            yield from self._pump(connection, subscription)
        finally:
            connection.close()

    def _pump(self, connection: Connection, subscription: Subscription) -> Iterator[Update]:
        """Events and gaps as they come. Its end is an exception."""
        flushed = self._options.clock.boot()
        while True:
            update = subscription.next(1.0)
            if isinstance(update, Gap):
                self.current = False
                yield Paused(GapReason(update.reason).name)
                yield from self._heal(connection, subscription, update)
            elif update is not None:
                yield from self._applied(update)
                self._heals = 0
            if (now := self._options.clock.boot()) - flushed >= FLUSH_SECONDS:
                flushed = now
                self._flush()

    def _heal(self, connection: Connection, subscription: Subscription, gap: Gap) -> Iterator[Update]:
        """Ends a gap that was told."""
        reason = GapReason(gap.reason)
        if reason in _ENDING or subscription.waiting:
            return  # the connection ends, or a newer gap is the one to heal
        self._heals += 1
        if self._heals > MAX_HEALS:
            raise connection.end("gap after gap: the subscription does not stay healed")
        if reason not in _NO_REPLAY and connection.answer.negotiated_capabilities & EVENT_REPLAY:
            try:
                replay = subscription.replay(gap)
            except Refused:
                pass  # the log does not reach that far: a snapshot does
            else:
                for event in replay.events:
                    yield from self._applied(event)
                self._cut = max(self._cut, replay.begin.replay_cut)
                if subscription.live:
                    self.current = True
                    yield Healed("replayed", connection.guard.authority_epoch)
                return
        snap = subscription.snapshot(self._memory, replace=True)
        yield from self._synced(snap, subscription.live)

    def _synced(self, snap: Snapshot, live: bool) -> Iterator[Update]:
        """Puts a verified snapshot in the view's place, and tells what it changed. It is current
        unless a gap has come behind its cut already."""
        before, self.view = self.view, {(r.kind, r.id): r for r in snap.records}
        self._guard, self._cut = snap.begin.authority_guard, snap.begin.base_event_sequence
        self.current, self._doubtful = live, False
        yield Synced(self._guard.authority_epoch, self._cut, snap.lost)
        for key in sorted(before.keys() | self.view.keys()):
            old, new = before.get(key), self.view.get(key)
            if old != new:
                yield Change(None, old, new)

    def _applied(self, event: ReplayEvent) -> Iterator[Change]:
        """Takes in one event: only the next revision of its object (§10). One that the view has
        already seen is skipped."""
        if event.event_sequence <= self._cut:
            return
        key = (event.object.kind, event.object.id)
        old = self.view.get(key)
        new = after(event, old)
        if new is None:
            del self.view[key]
        else:
            self.view[key] = new
        self._cut = event.event_sequence
        yield Change(event.event_sequence, old, new)


def after(event: ReplayEvent, old: SnapshotRecord | None) -> SnapshotRecord | None:
    """The record that an event leaves behind, None when it removes the object."""
    if event.object_revision != (old.revision if old else 0) + 1:
        raise ProtocolError("an event that is not the next revision of its object")
    record = event.record()
    if record is not None:
        record.decode()
        return record
    if old is None:
        raise ProtocolError("an event of an object that is not there")
    if event.event_kind == EventKind.OBJECT_REMOVED:
        return None
    return replace(old, revision=event.object_revision)  # facts leave the payload as it is [D-16]
