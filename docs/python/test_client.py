"""What the client decides without a coordinator: which authority it follows, when a certificate
has run out, which event it takes in, what it prints."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import follow
import work
from coordinator import commands, connection, context, ed25519, follower, frames, handshake, memory, records
from coordinator.codec import ProtocolError
from coordinator.records import AuthorityGuard, Certificate, EventKind, ObjectKind, ObjectRef, ReplayEvent, SnapshotRecord
from coordinator.text import inert

COORDINATOR = b"c" * 16
PEER = (1000, 100, 4242)


def certificate(epoch: int, activation: int | None = None, incarnation: bytes = b"i" * 16, expires: int = 1060) -> Certificate:
    return Certificate(
        version=1, witness_id=b"w" * 16, coordinator_id=COORDINATOR, activation_sequence=activation or epoch, authority_epoch=epoch,
        incarnation_id=incarnation, fencing_token=b"t" * 32, issued_at=expires - 60, expires_at=expires, witness_key_id=bytes(32),
        signature=bytes(64))


def begin(activation: int, base: int, bases: dict[int, int] | None = None) -> frames.SnapshotBegin:
    listed = None if bases is None else tuple(frames.ActivationBase(activation=a, base=b) for a, b in bases.items())
    guard = AuthorityGuard(
        coordinator_id=COORDINATOR, authority_epoch=activation, activation_sequence=activation, fencing_token_sha256=bytes(32))
    return frames.SnapshotBegin(
        request_id=1, snapshot_id=b"s" * 16, authority_guard=guard, base_event_sequence=base, lease_expires_at=0,
        activation_bases=listed)


class Remembering(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def open(self) -> memory.Memory:
        return memory.Memory(self.directory, COORDINATOR)

    def test_the_highest_authority_survives(self) -> None:
        self.assertFalse(self.open().accept(certificate(7)))
        with self.assertRaises(memory.LowerAuthority):
            self.open().accept(certificate(6))
        self.assertFalse(self.open().accept(certificate(7)))  # the same again is no news
        self.open().snapshot_verified(begin(7, 20), (0, 0))
        self.assertTrue(self.open().accept(certificate(7)))
        self.assertFalse(self.open().accept(certificate(8)))  # nothing has verified under this one

    def test_a_conflict_is_quarantined_for_good(self) -> None:
        for claim in (certificate(7, incarnation=b"x" * 16), certificate(8, activation=7), certificate(8, activation=6),
                      certificate(7, activation=8), certificate(6, activation=8)):
            with self.subTest(claim=claim.authority_epoch, activation=claim.activation_sequence):
                self.setUp()
                self.open().accept(certificate(7))
                for again in (claim, certificate(7), certificate(9)):
                    with self.assertRaises(memory.Quarantined):
                        self.open().accept(again)

    def test_a_higher_authority_closes_the_connections_of_a_lower_one(self) -> None:
        remembered, closed = self.open(), list[str]()
        remembered.accept(certificate(7))
        remembered.attach(closed.append, 7)
        remembered.accept(certificate(7))
        self.assertEqual(closed, [])
        remembered.accept(certificate(8))
        self.assertEqual(len(closed), 1)

    def test_the_cut_enters_an_activation_by_a_snapshot_only(self) -> None:
        remembered = self.open()
        remembered.accept(certificate(7))
        remembered.snapshot_verified(begin(7, 20), (0, 0))
        remembered.shown(7, 25)
        remembered.shown(8, 90)  # the result of a lookup under another authority
        self.assertEqual(self.open().cut, (7, 25))

    def test_lost_history(self) -> None:
        for shown, seen, lost in (
            ((0, 0), begin(9, 0, {}), False), ((7, 25), begin(7, 25), False), ((7, 25), begin(7, 24), True),
            ((7, 25), begin(9, 24, None), True), ((7, 25), begin(9, 30, {7: 10, 8: 25, 9: 27}), False),
            ((7, 25), begin(9, 30, {7: 10, 8: 24, 9: 27}), True), ((7, 25), begin(9, 30, {8: 24, 9: 27}), True),
            ((7, 25), begin(9, 30, {7: 10}), False),
        ):
            with self.subTest(shown=shown, begin=seen.activation_bases):
                self.assertEqual(memory.lost_history(shown, seen), lost)

    def test_commands_of_lost_history_are_not_sent_again(self) -> None:
        remembered = self.open()
        remembered.accept(certificate(7))
        remembered.begin(b"o" * 16, 1, b"payload")
        remembered.begin(b"o" * 16, 1, b"payload")  # the same again is no news
        with self.assertRaises(memory.BadMemory):
            remembered.begin(b"o" * 16, 1, b"another")
        self.assertEqual(self.open().unresolved(), [(b"o" * 16, 1, b"payload", False)])
        self.assertTrue(remembered.snapshot_verified(begin(7, 20), (7, 25)))
        with self.assertRaises(memory.LostHistory):
            self.open().begin(b"o" * 16, 1, b"payload")

    def test_a_damaged_memory_is_no_empty_one(self) -> None:
        remembered = self.open()
        remembered.accept(certificate(7))
        for text in ("", "{}", "[]", '{"version": 2, "operations": {}}'):
            remembered.path.write_text(text)
            self.assertRaises(memory.BadMemory, self.open)

    def test_a_memory_never_outgrows_what_it_reads(self) -> None:
        remembered = self.open()
        with mock.patch.object(memory, "MAX_BYTES", 64 << 10):
            with self.assertRaises(memory.BadMemory):
                for n in range(100):
                    remembered.begin(bytes((n + 1,)) * 16, 1, bytes(10 << 10))
            self.assertEqual(len(self.open().unresolved()), 3)


class TwoClocks(connection.Clock):
    def __init__(self) -> None:
        self.walls, self.boots = 1000.0, 50.0

    def wall(self) -> float:
        return self.walls

    def boot(self) -> float:
        return self.boots


class Leases(unittest.TestCase):
    def test_either_clock_ends_a_lease(self) -> None:
        for name, wall, boot, left in (
            ("both run", 1059.0, 109.0, 1.0), ("the end", 1060.0, 110.0, 0.0), ("set back", 900.0, 110.0, 0.0),
            ("set ahead", 1060.0, 51.0, 0.0), ("suspended with a stopped wall clock", 1001.0, 200.0, -90.0),
        ):
            with self.subTest(name):
                clock = TwoClocks()
                lease = connection.Lease(certificate(7), clock)
                clock.walls, clock.boots = wall, boot
                self.assertEqual(lease.left(), left)


class Greeting(unittest.TestCase):
    """What both frames of the server are held to."""

    def setUp(self) -> None:
        self.authority, self.witness, self.key = (ed25519.Key(bytes((n,)) * 32) for n in (1, 2, 3))
        self.pins = handshake.Pins(COORDINATOR, records.sha256(self.authority.public), b"w" * 16, self.witness.public)
        self.offer = handshake.hello("test", 0x0F, 0x01, frames.Limits(), b"n" * 32)
        self.challenge = self.signed(frames.WorkloadChallenge(
            profile=frames.PROFILE, service=frames.SERVICE, negotiated_major=0, negotiated_minor=1, client_nonce=b"n" * 32,
            server_nonce=b"s" * 32, server_incarnation=b"i" * 16, channel_binding_kind=handshake.UDS_PEER,
            channel_binding=handshake.uds_binding(b"s" * 32, *PEER), authority_public_key=self.authority.public,
            authority_proof=bytes(64)))
        self.response = handshake.respond(self.challenge, self.key, 0x03, 5000)
        self.answer = frames.CoordHelloOK(
            protocol_major=0, protocol_minor=1, protocol_patch=9, negotiated_capabilities=0x01, coordinator_id=COORDINATOR,
            authority_epoch=7, incarnation_id=b"i" * 16, max_frame_bytes=8192, max_page_bytes=4096, max_page_records=16,
            max_typed_payload_bytes=4096, max_event_credit_count=8, max_event_credit_bytes=8192,
            workload_grant=frames.WorkloadGrant(
                key_id=records.sha256(self.key.public), authority_fingerprint=self.pins.authority, expires_at=4000,
                effective_scope_bytes=bytes(7) + b"\1"),
            operation_result_retention_secs=2_592_000, activation_certificate=certificate(7))

    def signed(self, challenge: frames.WorkloadChallenge) -> frames.WorkloadChallenge:
        return dataclasses.replace(challenge, authority_proof=self.authority.sign(handshake.server_transcript(challenge)))

    def test_challenge(self) -> None:
        def check(challenge: frames.WorkloadChallenge) -> None:
            handshake.check_challenge(challenge, b"n" * 32, self.pins.authority, PEER)

        check(self.challenge)
        for name, value in (("client_nonce", b"x" * 32), ("service", "phux-witness"), ("negotiated_minor", 2), ("negotiated_major", 1),
                            ("channel_binding", bytes(32)), ("channel_binding_kind", 0), ("server_nonce", b"x" * 32)):
            with self.subTest(name), self.assertRaises(handshake.Untrusted):
                check(self.signed(dataclasses.replace(self.challenge, **{name: value})))  # type: ignore[arg-type]
        for bad in (dataclasses.replace(self.challenge, server_incarnation=b"x" * 16),
                    dataclasses.replace(self.challenge, authority_public_key=self.key.public)):
            with self.assertRaises(handshake.Untrusted):
                check(bad)

    def test_answer(self) -> None:
        def check(answer: frames.CoordHelloOK) -> None:
            handshake.check_answer(self.offer, self.challenge, self.response, answer, self.pins, 1000)

        check(self.answer)
        grant = self.answer.workload_grant
        for name, value in (
            ("protocol_minor", 2), ("negotiated_capabilities", 0x11), ("negotiated_capabilities", 0), ("coordinator_id", b"x" * 16),
            ("authority_epoch", 8), ("incarnation_id", b"x" * 16), ("max_page_records", 1024), ("max_page_bytes", 8000),
            ("max_event_credit_bytes", 4096), ("workload_grant", dataclasses.replace(grant, key_id=bytes(32))),
            ("workload_grant", dataclasses.replace(grant, authority_fingerprint=bytes(32))),
            ("workload_grant", dataclasses.replace(grant, expires_at=1000)),
            ("workload_grant", dataclasses.replace(grant, expires_at=5001)),
            ("workload_grant", dataclasses.replace(grant, effective_scope_bytes=bytes(8))),
            ("workload_grant", dataclasses.replace(grant, effective_scope_bytes=bytes(7) + b"\7")),
            ("activation_certificate", certificate(8)), ("activation_certificate", certificate(7, incarnation=b"x" * 16)),
        ):
            with self.subTest(name, value=value), self.assertRaises(handshake.Untrusted):
                check(dataclasses.replace(self.answer, **{name: value}))  # type: ignore[arg-type]


def objective(revision: int, document: bytes = b"{}") -> SnapshotRecord:
    payload = records.Objective(document_schema=1, document=document, state=0).body()
    return SnapshotRecord(kind=ObjectKind.OBJECTIVE, id=b"o" * 16, revision=revision, schema=1, payload=payload)


def event(carried: SnapshotRecord, **changes: object) -> ReplayEvent:
    made = ReplayEvent(
        event_sequence=1, event_id=b"e" * 16, event_kind=EventKind.OBJECTIVE_CHANGED, object=carried.ref,
        object_revision=carried.revision, schema=1, payload=carried.image())
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


class Applying(unittest.TestCase):
    def test_only_the_next_revision(self) -> None:
        self.assertEqual(follower.after(event(objective(1)), None), objective(1))
        self.assertEqual(follower.after(event(objective(2)), objective(1)), objective(2))
        for got, have in ((objective(2), None), (objective(1), objective(1)), (objective(3), objective(1))):
            with self.assertRaises(ProtocolError):
                follower.after(event(got), have)

    def test_an_event_carries_its_own_object(self) -> None:
        other = ObjectRef(kind=ObjectKind.OBJECTIVE, id=b"x" * 16)
        for bad in (
            event(objective(1), object=other), event(objective(1), payload=objective(2).image()),
            event(objective(1), payload=b""), event(objective(1), event_kind=EventKind.SOURCE_GAP),
            event(objective(1), event_kind=EventKind.OBJECT_REMOVED),
        ):
            with self.assertRaises(ProtocolError):
                follower.after(bad, None)

    def test_removal(self) -> None:
        gone = event(objective(2), event_kind=EventKind.OBJECT_REMOVED, payload=objective(2).ref.image())
        self.assertIsNone(follower.after(gone, objective(1)))
        with self.assertRaises(ProtocolError):
            follower.after(dataclasses.replace(gone, object_revision=1), None)

    def test_facts_raise_the_revision_and_leave_the_record(self) -> None:
        gap = records.SourceGap(binding_id=b"o" * 16, expected=1, observed=0, reason=2)
        old = dataclasses.replace(objective(4), kind=ObjectKind.BINDING)
        got = follower.after(event(
            objective(5), event_kind=EventKind.SOURCE_GAP, payload=gap.image(), object=old.ref), old)
        self.assertEqual(got, dataclasses.replace(old, revision=5))


    def test_what_the_view_has_seen_is_skipped(self) -> None:
        class Seen(follower.Follower):
            """A view that has seen up to event 5, and one object at its revision 2."""

            def __init__(self) -> None:
                self.view, self._cut = {(1, b"o" * 16): objective(2)}, 5

            def shows(self, e: ReplayEvent) -> list[follower.Change]:
                return list(self._applied(e))

        seen = Seen()
        self.assertEqual(seen.shows(event(objective(2), event_sequence=5)), [])
        self.assertEqual(seen.shows(event(objective(3), event_sequence=7)), [follower.Change(7, objective(2), objective(3))])
        with self.assertRaises(ProtocolError):
            seen.shows(event(objective(3), event_sequence=8))


class Commands(unittest.TestCase):
    def test_what_is_too_large_is_not_kept(self) -> None:
        class Full(commands.Session):
            def _connected(self) -> connection.Connection:
                return mock.Mock(spec=connection.Connection)

            def _send(self, connection: Any, a: Any) -> records.Result:
                raise too_large

        too_large = connection.TooLarge("CoordCommand is larger than this connection carries")
        with tempfile.TemporaryDirectory() as name:
            kept = memory.Memory(Path(name), COORDINATOR)
            known: Any = None
            session = Full(known, kept, connection.Options())
            self.assertRaises(commands.NotSent, session.do, b"o" * 16, 1, b"x", 5)
            self.assertEqual(kept.unresolved(), [])


class Printing(unittest.TestCase):
    def test_hostile_words_are_inert(self) -> None:
        for bad in ("\x1b[31m", "\a", "\n", "\r", "\u009b", "\u202e", "\u2066", "\u2028", "\ufeff", "\x7f", "\ue000", "\udc80"):
            self.assertNotIn(bad[0], inert(f"a{bad}b"), repr(bad))
        self.assertEqual(inert("日本, é, 👩\u200d💻"), "日本, é, 👩\u200d💻")
        self.assertLessEqual(len(inert("x" * 10_000)), 201)

    def test_documents_that_are_no_json(self) -> None:
        for raw in (b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b"[Infinity]", b"[1e999]", b"1" * 5000, b'"\xff"', "[1]".encode("utf-16")):
            payload = records.Objective(document_schema=1, document=raw, state=0)
            self.assertEqual(follow.plain(payload)["document_base64"], base64.b64encode(raw).decode())
            self.assertIsNone(follow.title(payload))
        for depth in range(100, 2000, 7):  # what can be read can be written too
            payload = records.Objective(document_schema=1, document=b"[" * depth + b"]" * depth, state=0)
            json.dumps({"after": {"payload": follow.plain(payload)}})

    def test_what_is_not_known_is_no_success(self) -> None:
        for result, code in ((records.Unknown(), 6), (records.Indeterminate(reason=0, effect_attempt_id=None), 6),
                             (records.Rejected(completed_event_sequence=1, error_code=14, message="no \x1b[31m"), 3)):
            with mock.patch("sys.stdout", io.StringIO()), mock.patch("sys.stderr", io.StringIO()) as said:
                self.assertEqual(work.tell(b"o" * 16, result), code)
            self.assertNotIn("\x1b", said.getvalue())

    def test_a_key_shows_its_public_half(self) -> None:
        key = ed25519.Key(b"\7" * 32)
        self.assertEqual(f"{key} {key!r}", f"ed25519:{key.public.hex()} ed25519:{key.public.hex()}")


class Contexts(unittest.TestCase):
    def test_what_others_may_change_or_read_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            key = Path(name) / "client.ed25519"
            key.write_bytes(b"\7" * 32)
            path = Path(name) / "context.toml"
            public = ed25519.Key(b"\1" * 32).public.hex()
            good = (f'name = "n"\nsocket = "s"\ncoordinator_id = "{"0c" * 16}"\nauthority = "sha256:{"0a" * 32}"\n'
                    f'witness_id = "{"0e" * 16}"\nwitness_public_key = "ed25519:{public}"\nkey_file = "client.ed25519"\n')
            path.write_text(good)
            key.chmod(0o600)
            path.chmod(0o600)
            self.assertEqual(context.load(path).socket, path.parent / "s")
            for changed in (good.replace("0c", "0C"), good.replace('"0e', '"0'), good + 'quic = "h:1"\n', good + "more = 1\n", "socket",
                            good.replace(public, "00" * 32), "x" * 32, good.replace("key_file", "agent")):
                path.write_text(changed)
                self.assertRaises(context.BadContext, context.load, path)
            path.write_text(good)
            for file, mode in ((key, 0o640), (path, 0o660)):
                file.chmod(mode)
                self.assertRaises(context.BadContext, context.load, path)
                file.chmod(0o600)


if __name__ == "__main__":
    unittest.main()
