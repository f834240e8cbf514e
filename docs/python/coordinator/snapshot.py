"""Snapshots and replays: staged unseen, verified whole, and only then given out (protocol.md §9,
§10).

Whoever shows a page before END has verified shows a partial truth. Nothing here hands out a
record earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .codec import ProtocolError
from .connection import Connection
from .frames import (
    OpenReplay, OpenSnapshot, ReplayBegin, ReplayEnd, ReplayNext, ReplayPage, SnapshotBegin, SnapshotEnd, SnapshotNext,
    SnapshotPage,
)
from .memory import Memory
from .records import ReplayEvent, SnapshotRecord, replay_digest, snapshot_digest

MAX_STAGED = 256 << 20  # bytes of images; an authority that outgrows this needs staging on disk


class Outgrown(Exception):
    """More than this client stages."""


@dataclass(frozen=True)
class Snapshot:
    """A verified snapshot of all that this key may see."""

    begin: SnapshotBegin
    records: list[SnapshotRecord]
    lost: bool  # history that this client had been shown is gone [D-26]


@dataclass(frozen=True)
class Replay:
    """Verified events behind a gap."""

    begin: ReplayBegin
    events: list[ReplayEvent]


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise ProtocolError(f"a snapshot or replay contradicts itself: {what}")


class _Stage:
    """Counts pages and bytes while they come."""

    def __init__(self, page_records: int) -> None:
        self.pages = 0
        self._bytes = 0
        self._page_records = page_records

    def page(self, index: int, asked: bytes, cursor: bytes, sizes: list[int]) -> None:
        """Holds a page to its place and to what was agreed."""
        _must(cursor == asked, "a page for another cursor")
        _must(index == self.pages, "a page out of its place")
        _must(len(sizes) <= self._page_records, "more on a page than was agreed")
        self.pages += 1
        self._bytes += sum(sizes)
        if self._bytes > MAX_STAGED:
            raise Outgrown(f"the authority holds more than the {MAX_STAGED} bytes that this client stages")


def take_snapshot(
    connection: Connection, memory: Memory, reserve: Callable[[SnapshotBegin], None] | None = None, replace: bytes | None = None,
) -> Snapshot:
    """Takes one snapshot, verifies it, and makes the authority current with it. reserve is told
    of BEGIN, whose subscription begins at its cut, before another frame is read. A failure ends the
    connection: a reservation has no other end."""
    shown = memory.cut  # before the cut is taken, so that the base must reach it
    try:
        request = connection.begin(
            OpenSnapshot, selector=0, reserve_subscription=reserve is not None, replace_paused_subscription=replace)
        begin = connection.finish(request, SnapshotBegin)
        _must((begin.subscription_id is not None) == (reserve is not None), "a subscription that was not asked for, or none")
        if reserve is not None:
            reserve(begin)
        records = _snapshot_records(connection, begin, request)
    except (ProtocolError, Outgrown) as e:
        connection.end(str(e))
        raise
    lost = memory.snapshot_verified(begin, shown)
    connection.verified = True
    return Snapshot(begin, records, lost)


def _snapshot_records(connection: Connection, begin: SnapshotBegin, request: int) -> list[SnapshotRecord]:
    """Every page and the END that vouches for them."""
    _must(begin.authority_guard == connection.guard, "the guard of another authority")
    assert connection.limits is not None
    stage, records, cursor = _Stage(connection.limits.page_records), list[SnapshotRecord](), begin.first_cursor
    while cursor is not None:
        request = connection.begin(SnapshotNext, snapshot_id=begin.snapshot_id, cursor=cursor)
        page = connection.finish(request, SnapshotPage)
        _must(page.snapshot_id == begin.snapshot_id, "a page of another snapshot")
        stage.page(page.page_index, cursor, page.cursor, [32 + len(r.payload) for r in page.records])
        if records and page.records:
            last, first = records[-1], page.records[0]
            _must((last.kind, last.id) < (first.kind, first.id), "records out of order")
        records += page.records
        cursor = page.next_cursor
    end = connection.finish(request, SnapshotEnd)
    _must(end.snapshot_id == begin.snapshot_id, "the end of another snapshot")
    _must((end.page_count, end.record_count) == (stage.pages, len(records)), "totals that do not agree")
    digest = snapshot_digest(begin.authority_guard, begin.base_event_sequence, records)
    _must(digest == end.canonical_sha256, "a digest that is not that of its records")
    for record in records:
        record.decode()  # the payload is what its kind says
    return records


def take_replay(connection: Connection, subscription: bytes, after: int, began: Callable[[], None]) -> Replay:
    """Reads and verifies the events behind a gap. began is told of BEGIN, before another frame is
    read. Refused: the log cannot heal it."""
    try:
        request = connection.begin(OpenReplay, subscription_id=subscription, after_event_sequence=after)
        begin = connection.finish(request, ReplayBegin)
        began()
        return Replay(begin, _replay_events(connection, begin, request, subscription, after))
    except (ProtocolError, Outgrown) as e:
        connection.end(str(e))
        raise


def _replay_events(connection: Connection, begin: ReplayBegin, request: int, subscription: bytes, after: int) -> list[ReplayEvent]:
    """Every page and the END that vouches for them."""
    _must(begin.subscription_id == subscription and begin.replay_cut >= after, "a replay of something else")
    _must((begin.first_event is None) == (begin.first_cursor is None), "a first event and no page, or a page and no event")
    assert connection.limits is not None
    stage, events, cursor = _Stage(connection.limits.page_records), list[ReplayEvent](), begin.first_cursor
    while cursor is not None:
        request = connection.begin(ReplayNext, replay_id=begin.replay_id, cursor=cursor)
        page = connection.finish(request, ReplayPage)
        _must(page.replay_id == begin.replay_id, "a page of another replay")
        stage.page(page.page_index, cursor, page.cursor, [58 + len(e.payload) for e in page.events])
        if page.events:
            last = events[-1].event_sequence if events else after
            _must(last < page.events[0].event_sequence and page.events[-1].event_sequence <= begin.replay_cut, "events out of order")
        events += page.events
        cursor = page.next_cursor
    end = connection.finish(request, ReplayEnd)
    _must(end.replay_id == begin.replay_id, "the end of another replay")
    _must((end.page_count, end.event_count) == (stage.pages, len(events)), "totals that do not agree")
    _must(begin.first_event == (events[0].event_sequence if events else None), "another first event than it began with")
    digest = replay_digest(connection.guard, subscription, after, begin.replay_cut, events)
    _must(digest == end.canonical_sha256, "a digest that is not that of its events")
    return events
