"""Subscriptions: order, credit, gaps, and what heals them (protocol.md §10)."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Self

from .codec import ProtocolError
from .connection import Connection, Refused
from .frames import Ack, CoordEvent, Credit, Gap, ReplayApplied, SnapshotApplied, SnapshotBegin, Subscribe, Subscribed
from .memory import Memory
from .records import ReplayEvent
from .snapshot import Replay, Snapshot, take_replay, take_snapshot

MAX_GAPS = 8  # that wait to be read: a paused subscription has few


class Phase(Enum):
    """The states of §10; a closed subscription is not kept."""

    RESERVED = 1
    LIVE = 2
    PAUSED = 3
    REPLAYING = 4


class Subscription:
    """Delivers events in order and once, and tells gaps.

    Credit is granted as events are taken, up to a window: what waits here is bounded by it, and
    a consumer that stops stops the coordinator."""

    def __init__(self, connection: Connection, count: int | None = None) -> None:
        assert connection.limits is not None
        limits = connection.limits
        self._connection = connection
        self._window = (min(count or limits.credit_count, limits.credit_count), limits.credit_bytes)
        self._largest = limits.largest_event()
        self.id = b""
        self._enter(b"", Phase.RESERVED, 0)

    def _enter(self, subscription: bytes, phase: Phase, after: int) -> None:
        """Becomes the subscription of another id."""
        self._connection.subscriptions.pop(self.id, None)
        if subscription:
            self._connection.subscriptions[subscription] = self
        self.id, self._phase = subscription, phase
        self._delivery: int = 0
        self._sent = after
        self._balance, self._owed = (0, 0), (0, 0)
        self._queue: deque[tuple[ReplayEvent | Gap, int]] = deque()
        self._gaps = 0  # since BEGIN
        self._applying: int | None = None  # cut of a replay whose APPLIED has no answer yet

    # --- the ways into LIVE, each with its one initial credit ---

    @classmethod
    def after(cls, connection: Connection, cut: int, count: int | None = None) -> Self:
        """Goes on from a cut that this client has verified on this authority, under these rights."""
        made = cls(connection, count)
        request = connection.begin(
            Subscribe, after_event_sequence=cut, initial_credit_count=made._window[0], initial_credit_bytes=made._window[1])
        answer = connection.finish(request, Subscribed)
        if answer.next_delivery_sequence != 1:
            raise connection.end("a subscription that does not begin with delivery 1")
        made._enter(answer.subscription_id, Phase.LIVE, cut)
        made._balance = made._window
        return made

    def snapshot(self, memory: Memory, replace: bool = False) -> Snapshot:
        """Begins at the cut of a new snapshot, in the place of this subscription where that is
        paused."""

        def reserve(begin: SnapshotBegin) -> None:
            self._enter(begin.subscription_id or b"", Phase.RESERVED, begin.base_event_sequence)

        snap = take_snapshot(self._connection, memory, reserve, self.id if replace else None)
        self._apply(SnapshotApplied, self._sent, snapshot_id=snap.begin.snapshot_id)
        return snap

    def replay(self, gap: Gap) -> Replay:
        """Reads what was missed behind the latest gap. Its events come before those that are live
        again; those up to the client's own cut are to be skipped. Refused: it cannot heal."""
        if self._phase is not Phase.PAUSED or self._queue:
            raise RuntimeError("only the latest gap can be healed, once it was told")

        def began() -> None:
            self._phase, self._gaps = Phase.REPLAYING, 0

        found = take_replay(self._connection, self.id, gap.last_contiguous_event, began)
        self._apply(ReplayApplied, found.begin.replay_cut, replay_id=found.begin.replay_id)
        return found

    def _apply(self, kind: type[SnapshotApplied] | type[ReplayApplied], cut: int, **fields: bytes) -> None:
        """Gives the initial credit. The ACK precedes the first event; a gap that was read before it
        leaves the subscription paused, whatever the ACK says [D-61]."""
        if kind is ReplayApplied and self._gaps:
            return  # void: its events stand, and the gap behind them is told
        self._applying = cut
        request = self._connection.begin(
            kind, subscription_id=self.id, initial_credit_count=self._window[0], initial_credit_bytes=self._window[1], **fields)
        try:
            self._connection.finish(request, Ack)
        except Refused:
            if not self._gaps:
                raise
        self._applying = None
        if not self._gaps:
            self._phase, self._sent, self._balance, self._owed = Phase.LIVE, cut, self._window, (0, 0)

    # --- what the connection hands over ---

    def take_event(self, frame: CoordEvent, outer: int) -> None:
        """One COORD_EVENT: exact-next, rising, and covered by credit."""
        count, size = self._balance
        if self._phase is not Phase.LIVE or frame.delivery_sequence != self._delivery + 1 or frame.event_sequence <= self._sent:
            raise ProtocolError("an event out of order, or on a subscription that is not live")
        if count < 1 or size < outer:
            raise ProtocolError("an event that no credit covers")
        self._balance = count - 1, size - outer
        self._delivery, self._sent = frame.delivery_sequence, frame.event_sequence
        self._queue.append((frame.event(), outer))

    def take_gap(self, frame: Gap) -> None:
        """One GAP. What it says of the last event must be what was read: an event that was sent and
        not read would be lost for ever."""
        if frame.last_contiguous_delivery != self._delivery or frame.last_contiguous_event not in (self._sent, self._applying):
            raise ProtocolError("a gap behind another event than the last one read")
        self._gaps += 1
        if self._gaps > MAX_GAPS:
            raise ProtocolError("more gaps than a paused subscription has")
        self._sent = frame.last_contiguous_event
        self._phase, self._balance, self._owed, self._applying = Phase.PAUSED, (0, 0), (0, 0), None
        self._queue.append((frame, 0))

    # --- what the consumer takes ---

    @property
    def live(self) -> bool:
        """Whether events come."""
        return self._phase is Phase.LIVE

    @property
    def waiting(self) -> bool:
        """Whether something that was read waits to be taken."""
        return bool(self._queue)

    def next(self, seconds: float) -> ReplayEvent | Gap | None:
        """The next event or gap, None when neither came in time. Taking an event grants room for
        another: credit acknowledges nothing, it says how much may wait here."""
        if not self._queue:
            self._connection.step(seconds)
        if not self._queue:
            return None
        update, outer = self._queue.popleft()
        if outer and self._phase is Phase.LIVE:
            self._owed = self._owed[0] + 1, self._owed[1] + outer
            self._grant()
        return update

    def _grant(self) -> None:
        """Gives credit back in portions: once half of the window is owed, and in any case before
        the balance no longer covers one event of the largest size [D-20]."""
        (count, size), (balance, left) = self._owed, self._balance
        if 2 * count < self._window[0] and 2 * size < self._window[1] and balance > 0 and left >= self._largest:
            return
        self._owed, self._balance = (0, 0), (balance + count, left + size)
        self._connection.tell(Credit, subscription_id=self.id, add_count=count, add_bytes=size)
