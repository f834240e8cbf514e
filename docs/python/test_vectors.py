"""Holds the client to the golden vectors of this repository, all of them that concern a client:

    python3 test_vectors.py ../../vectors/testdata

The last line says how many of each family were checked: a run that finds no vectors is no
success.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from coordinator import ed25519, frames, handshake, records
from coordinator.codec import Malformed, ProtocolError, Struct, U64, Value, canonical, read_fields
from coordinator.records import (
    AuthorityGuard, Certificate, OperationResult, ReplayEvent, SnapshotRecord, SourceFact, SourceGap, TerminalBindingRef,
)

DIRECTORY = Path(sys.argv.pop(1) if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir() else "vectors/testdata")
CHECKED: Counter[str] = Counter()

# Images of the repository that no client meets: those of owners, and of their effects.
FOREIGN = {"effect_targets", "bad_effect_targets", "effect_attempts", "bad_effect_attempts"}
IMAGES: dict[str, Value[Any]] = {
    "records": Struct(SnapshotRecord), "operation_results": OperationResult(), "facts": Struct(SourceFact),
    "binding_refs": Struct(TerminalBindingRef), "source_gaps": Struct(SourceGap),
}


def files(family: str) -> Iterator[Any]:
    """The file of a family and those beside it that add to it."""
    paths = sorted(DIRECTORY.glob(family + ".json")) + sorted(DIRECTORY.glob(family + ".*.json"))
    if not paths:
        raise FileNotFoundError(f"no {family}.json in {DIRECTORY}")
    for path in paths:
        yield json.loads(path.read_text())


def cases(family: str, member: str) -> Iterator[dict[str, Any]]:
    """The cases of one list in all files of a family."""
    for content in files(family):
        yield from content.get(member, [])


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def plain(value: Any) -> Any:
    """A value in the words of the vectors: numbers as they are, bytes as hex."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (Certificate, SnapshotRecord, ReplayEvent)):
        return value.image().hex()
    if isinstance(value, records.RESULTS):
        return OperationResult().image(value).hex()
    if isinstance(value, records.Precondition):
        return {"kind": value.object.kind, "id": value.object.id.hex(), "revision": value.expected_revision}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in cast(tuple[Any, ...], value)]
    return value


def agree(want: Any, got: Any) -> bool:
    """Whether got has all that want says. A u64 may stand there as text, an absent list as none."""
    if isinstance(want, dict):
        members = cast(dict[str, Any], want)
        return isinstance(got, dict) and all(name in got and agree(v, got[name]) for name, v in members.items())
    if isinstance(want, list):
        items, found = cast(list[Any], want), cast(list[Any], got or [])
        return len(items) == len(found) and all(map(agree, items, found))
    return want == got or (isinstance(want, str) and isinstance(got, int) and want == str(got))


class Vectors(unittest.TestCase):
    """One test for each family."""

    def each(self, name: str, found: Iterator[dict[str, Any]], check: Callable[[dict[str, Any]], None]) -> None:
        """Runs check on every case and counts them."""
        for case in found:
            with self.subTest(name, case=case.get("name")):
                check(case)
                CHECKED[name] += 1
        self.assertGreater(CHECKED[name], 0, name)

    def test_tlv(self) -> None:
        def check(case: dict[str, Any]) -> None:
            body = raw(case["body"])
            if case.get("error"):
                self.assertRaises(Malformed, read_fields, body)
                return
            self.assertEqual(sorted(read_fields(body)), [(n, raw(v)) for n, v in case["fields"]])
            self.assertEqual(canonical(body).hex(), case["canonical"])

        self.each("tlv", (case for content in files("tlv") for case in content), check)

    def test_frames(self) -> None:
        def check(case: dict[str, Any]) -> None:
            whole = raw(case["frame"])
            kind = frames.TYPES[case["type"]]
            self.assertEqual(whole[4], kind.TYPE)
            frame = kind.of_body(whole[5:])
            self.assertTrue(agree(case["values"], plain(frame)), f"{case['values']} is not in {plain(frame)}")
            self.assertEqual(frame.encode(), whole)

        self.each("frames", cases("frames", "frames"), check)

    def test_refused(self) -> None:
        states = {"handshake": frames.State.GREETING, "challenged": frames.State.PROVING, "active": frames.State.ACTIVE}

        def receive(whole: bytes, state: frames.State) -> None:
            kind, size = frames.check_header(whole[:5], state, frames.Limits())
            self.assertEqual(size, len(whole) - 5)
            frame = kind.of_body(whole[5:])
            if isinstance(frame, frames.CoordEvent):
                frame.event()

        def check(case: dict[str, Any]) -> None:
            with self.assertRaises(ProtocolError) as caught:
                receive(raw(case["frame"]), states[case["state"]])
            self.assertEqual(caught.exception.code, case["code"])

        self.each("refused", (c for c in cases("frames", "refused") if c["direction"] == "s2c"), check)

    def test_altered_frames(self) -> None:
        """A frame that was cut, or has one byte changed, is refused as the protocol says or is
        another frame: its canonical form decodes to the same. Nothing else may come of it."""

        def altered(body: bytes) -> Iterator[bytes]:
            for at in range(len(body)):
                yield body[:at]
                for flip in (0x01, 0xFF):
                    yield body[:at] + bytes((body[at] ^ flip,)) + body[at + 1 :]

        refused = taken = 0
        for case in cases("frames", "frames"):
            kind = frames.TYPES[case["type"]]
            for body in altered(raw(case["frame"])[5:]):
                try:
                    frame = kind.of_body(body)
                except ProtocolError:
                    refused += 1
                    continue
                taken += 1
                self.assertEqual(kind.of_body(frame.body()), frame, body.hex())
        self.assertGreater(refused, 1000)
        self.assertGreater(taken, 1000)

    def test_images(self) -> None:
        def good(value: Value[Any], case: dict[str, Any]) -> None:
            found = value.of_field(raw(case["image"]))
            self.assertEqual(value.image(found).hex(), case["image"])
            if isinstance(found, SnapshotRecord):
                payload = found.decode()
                self.assertEqual(payload.body() if payload else b"", found.payload)

        def bad(value: Value[Any], case: dict[str, Any]) -> None:
            with self.assertRaises(Malformed):
                found = value.of_field(raw(case["image"]))
                if isinstance(found, SnapshotRecord):
                    found.decode()

        for content in files("records"):
            for name in content:
                value = IMAGES.get(name.removeprefix("bad_"))
                if value is None:
                    self.assertIn(name, FOREIGN)
                    continue
                judge = bad if name.startswith("bad_") else good
                self.each(name, iter(content[name]), lambda case, v=value, j=judge: j(v, case))  # type: ignore[misc]

    def test_operation_digests(self) -> None:
        def check(case: dict[str, Any]) -> None:
            c = frames.CoordCommand.of_body(raw(case["frame"])[5:])
            got = records.operation_digest(c.command_kind, c.payload, c.preconditions or (), c.extensions)
            self.assertEqual(got.hex(), case["digest"])

        self.each("operation", cases("digests", "operation"), check)

    def test_stream_digests(self) -> None:
        def guard(case: dict[str, Any]) -> AuthorityGuard:
            return AuthorityGuard(
                coordinator_id=raw(case["coordinator_id"]), authority_epoch=int(case["authority_epoch"]),
                activation_sequence=int(case["activation_sequence"]), fencing_token_sha256=bytes(32))

        def snapshot(case: dict[str, Any]) -> None:
            found = [SnapshotRecord.of_image(raw(r)) for r in case["records"]]
            self.assertEqual(records.snapshot_digest(guard(case), int(case["base_event_cut"]), found).hex(), case["digest"])

        def replay(case: dict[str, Any]) -> None:
            found = [ReplayEvent.of_image(raw(e)) for e in case["events"]]
            got = records.replay_digest(
                guard(case), raw(case["subscription_id"]), int(case["after_event_cut"]), int(case["replay_cut"]), found)
            self.assertEqual(got.hex(), case["digest"])

        self.each("snapshot", cases("digests", "snapshot"), snapshot)
        self.each("replay", cases("digests", "replay"), replay)

    def test_seals_and_ids(self) -> None:
        def seal(case: dict[str, Any]) -> None:
            facts = [SourceFact.of_image(raw(f)) for f in case["facts"]]
            got = records.evidence_seal(raw(case["coordinator_id"]), raw(case["binding_id"]), facts)
            self.assertEqual(got.hex(), case["digest"])

        def admin(case: dict[str, Any]) -> None:
            self.assertEqual(records.admin_record_id(case["kind"], raw(case["subject"])).hex(), case["id"])

        self.each("evidence", cases("digests", "evidence"), seal)
        self.each("admin_record_id", cases("digests", "admin_record_id"), admin)

    def test_certificates(self) -> None:
        for content in files("certificates"):
            pins = handshake.Pins(
                raw(content["pins"]["coordinator_id"]), bytes(32), raw(content["pins"]["witness_id"]),
                raw(content["pins"]["witness_public_key"]))

            def check(case: dict[str, Any]) -> None:
                valid = True
                try:
                    certificate = Certificate.of_image(raw(case["certificate"]))
                    handshake.check_certificate(certificate, pins, int(case["now"]))
                except (Malformed, handshake.Untrusted):
                    valid = False
                self.assertEqual(valid, case["valid"])

            self.each("certificates", iter(content["cases"]), check)

    def test_handshake(self) -> None:
        def check(v: dict[str, Any]) -> None:
            authority, key = ed25519.Key(raw(v["authority_seed"])), ed25519.Key(raw(v["workload_seed"]))
            peer = (v["peer"]["uid"], v["peer"]["gid"], v["peer"]["pid"])
            challenge = frames.WorkloadChallenge(
                profile=frames.PROFILE, service=v["service"], negotiated_major=0, negotiated_minor=1,
                client_nonce=raw(v["client_nonce"]), server_nonce=raw(v["server_nonce"]), server_incarnation=raw(v["incarnation"]),
                channel_binding_kind=handshake.UDS_PEER, channel_binding=raw(v["uds_binding"]),
                authority_public_key=authority.public, authority_proof=raw(v["authority_proof"]))
            fingerprint = records.sha256(authority.public)
            handshake.check_challenge(challenge, raw(v["client_nonce"]), fingerprint, peer)
            response = handshake.respond(challenge, key, U64.of_field(raw(v["scope_bytes"])), int(v["requested_expiry"]))
            transcript = handshake.client_transcript(
                challenge, response.key_id, response.requested_expiry, response.requested_scope_bytes)
            got = {
                "authority_public_key": authority.public, "workload_public_key": key.public, "key_id": response.key_id,
                "uds_binding": handshake.uds_binding(raw(v["server_nonce"]), *peer),
                "tls_context": handshake.tls_context(v["service"]),
                "server_transcript": handshake.server_transcript(challenge), "client_transcript": transcript,
                "authority_proof": authority.sign(handshake.server_transcript(challenge)),
                "workload_proof": response.workload_proof,
            }
            self.assertEqual({name: value.hex() for name, value in got.items()}, {name: v[name] for name in got})
            self.assertEqual("sha256:" + fingerprint.hex(), v["fingerprint_text"])

        self.each("handshake", files("handshake"), check)

    def test_ed25519(self) -> None:
        def check(case: dict[str, Any]) -> None:
            got = ed25519.verify(raw(case["public_key"]), raw(case["message"]), raw(case["signature"]))
            self.assertEqual(got, case["valid"])

        self.each("ed25519", (case for content in files("ed25519") for case in content), check)


if __name__ == "__main__":
    program = unittest.main(exit=False)
    print("checked", json.dumps(dict(sorted(CHECKED.items()))))
    sys.exit(not program.result.wasSuccessful())
