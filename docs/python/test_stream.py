"""Subscriptions, snapshots and replays against a script of frames: what is out of order, is not
covered by credit, or contradicts itself ends the connection, and heals only where it is whole."""

from __future__ import annotations

import dataclasses
import unittest
from collections import deque
from typing import Any, cast

from coordinator import frames, records
from coordinator.codec import ProtocolError
from coordinator.connection import Connection, ConnectionEnded, Refused
from coordinator.frames import CoordEvent, Credit, Frame, Gap, Limits
from coordinator.records import AuthorityGuard, ObjectKind, ReplayEvent, SnapshotRecord
from coordinator.snapshot import Replay, Snapshot, take_replay, take_snapshot
from coordinator.stream import Subscription

GUARD = AuthorityGuard(coordinator_id=b"c" * 16, authority_epoch=7, activation_sequence=7, fencing_token_sha256=bytes(32))
SUB, LEASE = b"u" * 16, b"l" * 16


def record(n: int, revision: int = 1) -> SnapshotRecord:
    payload = records.Objective(document_schema=1, document=b"{}", state=0).body()
    return SnapshotRecord(kind=ObjectKind.OBJECTIVE, id=bytes((n,)) * 16, revision=revision, schema=1, payload=payload)


def event(sequence: int) -> ReplayEvent:
    r = record(sequence)
    return ReplayEvent(
        event_sequence=sequence, event_id=b"e" * 16, event_kind=1, object=r.ref, object_revision=1, schema=1, payload=r.image())


def live(delivery: int, sequence: int) -> CoordEvent:
    e = event(sequence)
    return CoordEvent(
        subscription_id=SUB, delivery_sequence=delivery, event_sequence=sequence, event_id=e.event_id, event_kind=e.event_kind,
        object=e.object, object_revision=1, schema=1, payload=e.payload)


def gap(delivery: int, sequence: int, reason: int = 0) -> Gap:
    return Gap(subscription_id=SUB, last_contiguous_delivery=delivery, last_contiguous_event=sequence, reason=reason)


class Script:
    """A connection whose coordinator says what a test has written down."""

    def __init__(self, *replies: Frame | Exception, limits: Limits | None = None) -> None:
        self.limits, self.guard = limits or Limits(), GUARD
        self.subscriptions: dict[bytes, Any] = {}
        self.replies, self.arriving = deque(replies), deque[Frame]()
        self.told: list[Any] = []
        self.ended = ""
        self.verified = False

    def begin(self, kind: type[Frame], **fields: Any) -> int:
        self.told.append((kind, fields))
        return 1

    def finish(self, request: int, want: type[Frame]) -> Frame:
        reply = self.replies.popleft()
        if isinstance(reply, Gap):  # it comes first, and the reply behind it
            self.subscriptions[SUB].take_gap(reply)
            return self.finish(request, want)
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, want), reply
        return reply

    def tell(self, kind: type[Frame], **fields: Any) -> None:
        self.told.append((kind, fields))

    def step(self, seconds: float) -> bool:
        if not self.arriving:
            return False
        frame = self.arriving.popleft()
        if isinstance(frame, Gap):
            self.subscriptions[SUB].take_gap(frame)
        else:
            self.subscriptions[SUB].take_event(frame, len(frame.encode()))
        return True

    def end(self, why: str) -> ConnectionEnded:
        self.ended = why
        return ConnectionEnded(why)

    @property
    def connection(self) -> Connection:
        return cast(Connection, self)


class Remembers:
    """A memory that takes whatever it is told."""

    cut = (0, 0)

    def snapshot_verified(self, begin: frames.SnapshotBegin, shown: tuple[int, int]) -> bool:
        return False


def subscribed(script: Script, after: int = 20, count: int | None = None) -> Subscription:
    script.replies.appendleft(frames.Subscribed(request_id=1, subscription_id=SUB, next_delivery_sequence=1))
    return Subscription.after(script.connection, after, count)


class Streams(unittest.TestCase):
    def test_order(self) -> None:
        for name, first in (("delivery", live(2, 21)), ("sequence", live(1, 20))):
            with self.subTest(name):
                script = Script()
                subscription = subscribed(script)
                script.arriving.append(first)
                self.assertRaises(ProtocolError, subscription.next, 0)
        script = Script()
        subscription = subscribed(script)
        script.arriving.extend((live(1, 21), live(2, 25)))
        self.assertEqual([subscription.next(0), subscription.next(0)], [event(21), event(25)])

    def test_credit_covers_both_balances(self) -> None:
        size = len(live(1, 21).encode())
        for name, count, limits in (("count", 1, Limits()), ("bytes", 8, Limits(typed_payload=1, credit_bytes=size + 1))):
            with self.subTest(name):
                script = Script(limits=limits)
                subscription = subscribed(script, count=count)
                subscription.take_event(live(1, 21), size)
                self.assertRaises(ProtocolError, subscription.take_event, live(2, 22), size)

    def test_credit_is_given_back_in_portions_and_never_too_late(self) -> None:
        for name, limits, events, grants in (
            ("half of the count", Limits(credit_count=4), 8, 4),
            ("the balance must cover the largest event", Limits(credit_count=100, credit_bytes=1200, typed_payload=1000), 3, 3),
            ("little of much", Limits(), 8, 0),
        ):
            with self.subTest(name):
                script = Script(limits=limits)
                subscription = subscribed(script)
                for n in range(events):
                    script.arriving.append(live(n + 1, 21 + n))
                    subscription.next(0)
                given = [fields for kind, fields in script.told if kind is Credit]
                self.assertEqual(len(given), grants)

    def test_a_gap_names_what_was_read(self) -> None:
        for bad in (gap(0, 21), gap(1, 20), gap(2, 22)):
            script = Script()
            subscription = subscribed(script)
            subscription.take_event(live(1, 21), 173)
            self.assertRaises(ProtocolError, subscription.take_gap, bad)

    def test_after_a_gap_nothing_comes_until_it_is_healed(self) -> None:
        script = Script()
        subscription = subscribed(script)
        script.arriving.extend((live(1, 21), gap(1, 21)))
        self.assertEqual(subscription.next(0), event(21))
        with self.assertRaises(RuntimeError):
            subscription.replay(gap(1, 21))  # it has not been told yet
        self.assertEqual(subscription.next(0), gap(1, 21))
        self.assertRaises(ProtocolError, subscription.take_event, live(2, 22), 1)

    def healed(self, *answer: Frame | Exception) -> tuple[Script, Subscription, Replay]:
        script = Script()
        subscription = subscribed(script)
        told = gap(0, 20)
        script.arriving.append(told)
        subscription.next(0)
        script.replies.extend((*replay(), *answer))
        return script, subscription, subscription.replay(told)

    def test_a_replay_resumes_the_same_subscription(self) -> None:
        script, subscription, found = self.healed(frames.Ack(request_id=1))
        self.assertEqual([e.event_sequence for e in found.events], [22, 25, 30])
        self.assertTrue(subscription.live)
        script.arriving.append(live(1, 31))
        self.assertEqual(subscription.next(0), event(31))
        script.arriving.append(live(2, 30))
        self.assertRaises(ProtocolError, subscription.next, 0)

    def test_a_gap_before_the_acceptance_leaves_it_paused(self) -> None:
        for sequence in (20, 30):  # before the coordinator took APPLIED in, and after
            _, subscription, _ = self.healed(gap(0, sequence), frames.Ack(request_id=1))
            self.assertFalse(subscription.live)
            self.assertEqual(subscription.next(0), gap(0, sequence))
        _, subscription, _ = self.healed(gap(0, 20), Refused(records.Code.CURSOR_INVALID, ""))
        self.assertFalse(subscription.live)


    def test_a_gap_during_a_replay_voids_it_and_its_events_stand(self) -> None:
        script = Script()
        subscription = subscribed(script)
        script.arriving.append(gap(0, 20))
        subscription.next(0)
        whole = replay()
        script.replies.extend((*whole[:2], gap(0, 20), *whole[2:]))
        self.assertEqual(len(subscription.replay(gap(0, 20)).events), 3)
        self.assertNotIn(frames.ReplayApplied, [kind for kind, _ in script.told])
        self.assertFalse(subscription.live)
        self.assertEqual(subscription.next(0), gap(0, 20))


def replay() -> list[Any]:
    """BEGIN, two pages and END of a replay in (20, 30]."""
    events = [event(22), event(25), event(30)]
    return [
        frames.ReplayBegin(request_id=1, replay_id=LEASE, subscription_id=SUB, first_event=22, replay_cut=30, first_cursor=b"a",
                           lease_expires_at=0),
        frames.ReplayPage(request_id=1, replay_id=LEASE, cursor=b"a", page_index=0, events=tuple(events[:2]), next_cursor=b"b"),
        frames.ReplayPage(request_id=1, replay_id=LEASE, cursor=b"b", page_index=1, events=tuple(events[2:])),
        frames.ReplayEnd(request_id=1, replay_id=LEASE, page_count=2, event_count=3,
                         canonical_sha256=records.replay_digest(GUARD, SUB, 20, 30, events)),
    ]


def snapshot() -> list[Any]:
    """BEGIN, two pages and END of a snapshot."""
    found = [record(1), record(2), record(3)]
    return [
        frames.SnapshotBegin(request_id=1, snapshot_id=LEASE, authority_guard=GUARD, base_event_sequence=20, first_cursor=b"a",
                             subscription_id=SUB, lease_expires_at=0),
        frames.SnapshotPage(request_id=1, snapshot_id=LEASE, cursor=b"a", page_index=0, records=tuple(found[:2]), next_cursor=b"b"),
        frames.SnapshotPage(request_id=1, snapshot_id=LEASE, cursor=b"b", page_index=1, records=tuple(found[2:])),
        frames.SnapshotEnd(request_id=1, snapshot_id=LEASE, page_count=2, record_count=3,
                           canonical_sha256=records.snapshot_digest(GUARD, 20, found)),
    ]


class Contradictions(unittest.TestCase):
    """One member changed in one frame of what is otherwise whole."""

    def take_snapshot(self, script: Script) -> Snapshot:
        return take_snapshot(script.connection, cast(Any, Remembers()), lambda begin: None)

    def take_replay(self, script: Script) -> Replay:
        return take_replay(script.connection, SUB, 20, lambda: None)

    def test_snapshots(self) -> None:
        self.assertEqual(len(self.take_snapshot(Script(*snapshot())).records), 3)
        other = dataclasses.replace(GUARD, authority_epoch=8)
        for at, member, value in (
            (0, "authority_guard", other), (0, "subscription_id", None), (0, "base_event_sequence", 21), (1, "snapshot_id", SUB),
            (1, "cursor", b"b"), (1, "page_index", 1), (1, "records", (record(1),)), (1, "records", (record(1), record(2, 2))),
            (2, "records", (record(2),)), (2, "records", (record(0x22), record(0x33))), (2, "page_index", 2), (3, "snapshot_id", SUB),
            (3, "page_count", 1), (3, "record_count", 4), (3, "canonical_sha256", bytes(32)),
        ):
            with self.subTest(at=at, member=member, value=value):
                self.assert_refused(snapshot(), at, member, value, self.take_snapshot)

    def test_replays(self) -> None:
        self.assertEqual(len(self.take_replay(Script(*replay())).events), 3)
        for at, member, value in (
            (0, "subscription_id", LEASE), (0, "replay_cut", 19), (0, "replay_cut", 29), (0, "first_event", None), (0, "first_event", 21),
            (1, "replay_id", SUB), (1, "cursor", b"b"), (1, "page_index", 1), (1, "events", (event(20), event(25))),
            (1, "events", (event(22),)), (2, "events", (event(25),)), (2, "events", (event(31),)), (3, "replay_id", SUB),
            (3, "page_count", 3), (3, "event_count", 2), (3, "canonical_sha256", bytes(32)),
        ):
            with self.subTest(at=at, member=member, value=value):
                self.assert_refused(replay(), at, member, value, self.take_replay)

    def test_more_than_was_agreed(self) -> None:
        for whole, take in ((snapshot(), self.take_snapshot), (replay(), self.take_replay)):
            with self.assertRaises(ProtocolError):
                take(Script(*whole, limits=Limits(page_records=1)))

    def assert_refused(self, whole: list[Any], at: int, member: str, value: Any, take: Any) -> None:
        whole[at] = dataclasses.replace(whole[at], **{member: value})
        script = Script(*whole)
        with self.assertRaises(ProtocolError):
            take(script)
        self.assertTrue(script.ended)
        self.assertFalse(script.verified)


if __name__ == "__main__":
    unittest.main()
