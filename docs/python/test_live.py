"""The client against a coordinator that runs, over its Unix socket:

    CONTEXT=~/.local/state/coordinator/client/context.toml python3 test_live.py

It makes objectives there, so it is for a coordinator that was brought up to be tested.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

from coordinator import context, frames
from coordinator.commands import CREATE_OBJECTIVE, CreateObjective, Session, Attempt, new_id
from coordinator.connection import Clock, Connection, ConnectionEnded, Options, Refused
from coordinator.follower import Change, Follower, Healed, Paused, Synced, Update
from coordinator.memory import Memory
from coordinator.records import ObjectKind, Result, Succeeded, Unknown
from coordinator.snapshot import take_snapshot
from coordinator.stream import Subscription

READ_WRITE = frames.WORK_READ | frames.WORK_COMMAND
MANY = 600  # each is two events, and 1,024 may be unsent (§2.3)


class Skewed(Clock):
    """The system's clocks, and one step of BOOTTIME on request."""

    ahead = 0.0

    def boot(self) -> float:
        return super().boot() + self.ahead


def payload(document: bytes = b"{}") -> bytes:
    return CreateObjective(objective_id=new_id(), schema=1, document=document).body()


class Live(unittest.TestCase):
    def setUp(self) -> None:
        """A context of its own, in a directory of its own, whose memory is empty."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        original = Path(os.environ["CONTEXT"])
        for name in (original.name, "client.ed25519"):
            shutil.copy(original.parent / name, directory.name)
        self.context = context.load(Path(directory.name) / original.name)
        self.memory = Memory(Path(directory.name), self.context.pins.coordinator_id)

    def connect(self, **options: int) -> Connection:
        made = Connection(self.context, self.memory, Options(scope=READ_WRITE, **options))  # type: ignore[arg-type]
        self.addCleanup(made.close)
        if not made.verified:
            take_snapshot(made, self.memory)
        return made

    def follow(self, offered: int) -> tuple[Follower, Iterator[Update]]:
        follower = Follower(self.context, self.memory, Options(offered=offered), count=4, sleep=lambda _: None)
        updates = follower.updates()
        self.addCleanup(updates.close)  # type: ignore[attr-defined]
        for update in updates:
            if isinstance(update, Synced):
                return follower, updates
        raise AssertionError("updates do not end")

    def make_one(self) -> None:
        session = Session(self.context, self.memory, Options(scope=READ_WRITE))
        self.addCleanup(session.close)
        self.assertIsInstance(session.do(new_id(), CREATE_OBJECTIVE, payload(), 10), Succeeded)

    def make_many(self) -> None:
        """Many objectives, with as many requests outstanding as may be."""
        connection, sent = self.connect(), list[int]()
        for _ in range(MANY):
            if len(sent) == 100:
                connection.finish(sent.pop(0), frames.CoordCommandResult)
            sent.append(connection.begin(
                frames.CoordCommand, operation_id=new_id(), command_kind=CREATE_OBJECTIVE, payload=payload()))
        for request in sent:
            connection.finish(request, frames.CoordCommandResult)

    def until_healed(self, updates: Iterator[Update]) -> list[Update]:
        """Every update up to the one that makes the view current again."""
        seen: list[Update] = []
        for update in updates:
            if isinstance(update, (Synced, Healed)):
                return seen + [update]
            seen.append(update)
        return seen

    def assert_whole(self, follower: Follower, updates: Iterator[Update]) -> None:
        """The view becomes what a new snapshot of the same rights shows."""
        offered = follower.connection.answer.negotiated_capabilities if follower.connection else 0
        other = Connection(self.context, self.memory, Options(offered=offered))
        self.addCleanup(other.close)
        want = {(r.kind, r.id): r for r in take_snapshot(other, self.memory).records}
        while follower.view != want:
            self.assertIsInstance(next(updates), Change)
        self.assertTrue(follower.current)

    def test_an_overflow_is_healed_by_replay(self) -> None:
        follower, updates = self.follow(frames.EVENT_REPLAY)
        self.make_many()
        seen = self.until_healed(updates)
        self.assertEqual([u.why for u in seen if isinstance(u, Paused)], ["QUEUE_OVERFLOW"])
        self.assertEqual([u.how for u in seen if isinstance(u, Healed)], ["replayed"])
        self.assertGreaterEqual(sum(isinstance(u, Change) for u in seen), 2 * MANY)
        self.assert_whole(follower, updates)
        self.make_one()
        self.assert_whole(follower, updates)  # the same subscription goes on

    def test_an_overflow_is_healed_by_a_snapshot(self) -> None:
        follower, updates = self.follow(0)
        self.make_many()
        seen = self.until_healed(updates)
        self.assertEqual([u.why for u in seen if isinstance(u, Paused)], ["QUEUE_OVERFLOW"])
        self.assertIsInstance(seen[-1], Synced)
        self.assert_whole(follower, updates)

    def test_a_lost_connection_goes_on_from_the_cut(self) -> None:
        follower, updates = self.follow(frames.EVENT_REPLAY)
        self.assert_whole(follower, updates)
        assert follower.connection is not None
        follower.connection.close("cut by the test")
        self.make_one()
        seen = self.until_healed(updates)
        self.assertEqual([u.why for u in seen if isinstance(u, Paused)], ["cut by the test"])
        self.assertIsInstance(seen[-1], Healed)
        self.assert_whole(follower, updates)

    def test_what_comes_after_the_expiry_did_not_come(self) -> None:
        clock = Skewed()
        connection = Connection(self.context, self.memory, Options(scope=READ_WRITE, clock=clock))
        take_snapshot(connection, self.memory)
        request = connection.begin(frames.GetOperationResult, operation_id=new_id())
        clock.ahead = 60.0  # as when the machine was suspended
        with self.assertRaises(ConnectionEnded):
            connection.finish(request, frames.OperationResultFrame)

    def test_what_was_read_before_a_sleep_is_not_acted_on(self) -> None:
        clock = Skewed()

        class Sleeping(Connection):
            """Its machine sleeps right after a frame was read."""

            sleeps = False

            def _read(self, deadline: float) -> tuple[frames.Frame, int] | None:
                got = super()._read(deadline)
                clock.ahead = 60.0 if self.sleeps and got else 0.0
                return got

        connection = Sleeping(self.context, self.memory, Options(scope=READ_WRITE, clock=clock))
        take_snapshot(connection, self.memory)
        connection.sleeps = True
        with self.assertRaises(ConnectionEnded):
            connection.finish(connection.begin(frames.GetOperationResult, operation_id=new_id()), frames.OperationResultFrame)

    def test_a_lost_answer_is_looked_up(self) -> None:
        losses = 2

        class Losing(Session):
            """Loses its connection once the command has been sent, and once before."""

            def _send(self, connection: Connection, a: Attempt) -> Result:
                nonlocal losses
                losses -= 1
                if losses == 1:
                    super()._send(connection, a)
                if losses >= 0:
                    raise connection.end("cut by the test")
                return super()._send(connection, a)

        session = Losing(self.context, self.memory, Options(scope=READ_WRITE), sleep=lambda _: None)
        self.addCleanup(session.close)
        operation = new_id()
        self.assertIsInstance(session.do(operation, CREATE_OBJECTIVE, payload(), 10), Succeeded)
        self.assertEqual(losses, 1, "a command that had run was sent again")
        self.assertIsInstance(session.do(new_id(), CREATE_OBJECTIVE, payload(), 10), Succeeded)
        self.assertEqual(losses, -1, "a command that had not run was not sent again")
        self.assertEqual(self.memory.unresolved(), [])
        self.assertIsInstance(session.lookup(operation), Succeeded)
        self.assertIsInstance(session.lookup(new_id()), Unknown)

    def test_a_refusal_leaves_nothing_behind(self) -> None:
        session = Session(self.context, self.memory, Options(scope=frames.WORK_READ))
        self.addCleanup(session.close)
        with self.assertRaises(Refused) as caught:
            session.do(new_id(), CREATE_OBJECTIVE, payload(), 10)
        self.assertEqual(caught.exception.code.name, "SCOPE_DENIED")
        self.assertEqual(self.memory.unresolved(), [])

    def test_small_pages_and_little_credit(self) -> None:
        limits = frames.Limits(frame_bytes=2048, page_bytes=512, page_records=2, typed_payload=1024, credit_count=1, credit_bytes=1136)
        connection = Connection(self.context, self.memory, Options(scope=READ_WRITE, limits=limits))
        self.addCleanup(connection.close)
        subscription = Subscription(connection)
        made = subscription.snapshot(self.memory).begin.base_event_sequence
        for _ in range(5):
            connection.finish(connection.begin(
                frames.CoordCommand, operation_id=new_id(), command_kind=CREATE_OBJECTIVE, payload=payload(b'{"a": 1}')),
                frames.CoordCommandResult)
        kinds = list[int]()
        while len(kinds) < 10:
            update = subscription.next(5)
            assert update is not None and not isinstance(update, frames.Gap)
            self.assertGreater(update.event_sequence, made)
            made = update.event_sequence
            kinds.append(update.object.kind)
        self.assertEqual(kinds, [ObjectKind.OBJECTIVE, ObjectKind.OPERATION] * 5)


if __name__ == "__main__":
    unittest.main()
