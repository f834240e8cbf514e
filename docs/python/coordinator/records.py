"""What frames carry: objects and their records, results of operations, facts (protocol.md §7,
§8, §11), and the digests that make them provable.

Field names are the protocol's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import IntEnum

from .codec import (
    COUNT64, HASH, ID, SIGNATURE, U8, U16, U32, U64, Blob, Field, Fixed, Image, Malformed, Maybe, Message,
    Reader, SInt32, Sized, Struct, Text, UInt, Value, canonical, wire, write_fields,
)

MAX_PAYLOAD = 256 << 10  # of a command or an event (§2.3)
MAX_TEXT = 1024
MIN_RETENTION = 2_592_000  # seconds, of the results of operations
MAX_RESOURCE = 4 << 10
SCHEMA = 1  # of records and of facts, in this version
PAYLOAD = Blob(MAX_PAYLOAD)


class ObjectKind(IntEnum):
    """Families of objects (§7.1)."""

    OBJECTIVE = 1
    RUN = 2
    WORK_SESSION = 3
    BINDING = 4
    ARTIFACT = 5
    SIGNAL = 6
    OPERATION = 7
    EVIDENCE = 8
    ADMIN = 9
    ARTIFACT_MANIFEST = 10


class EventKind(IntEnum):
    """Kinds of events (§7.1); the last one is of the extension ARCHIVE (§12)."""

    OBJECTIVE_CHANGED = 1
    RUN_CHANGED = 2
    WORK_SESSION_CHANGED = 3
    BINDING_OPENED = 4
    BINDING_ENDED = 5
    ARTIFACT_REVISION_ADDED = 6
    SIGNAL_RAISED = 7
    SIGNAL_ACKNOWLEDGED = 8
    SIGNAL_SUPPRESSED = 9
    SIGNAL_RESOLVED = 10
    OPERATION_CHANGED = 11
    SOURCE_FACT_ADMITTED = 12
    SOURCE_GAP = 13
    EVIDENCE_SEALED = 14
    OBJECT_REMOVED = 0x4000

    @property
    def carries_record(self) -> bool:
        """Whether the payload is one whole SnapshotRecord."""
        return self not in (EventKind.SOURCE_FACT_ADMITTED, EventKind.SOURCE_GAP, EventKind.OBJECT_REMOVED)


class Code(IntEnum):
    """Error codes (§13)."""

    VERSION_INCOMPATIBLE = 1
    FRAME_TOO_LARGE = 2
    MALFORMED_MESSAGE = 3
    PROTOCOL_ERROR = 4
    AUTHENTICATION_FAILED = 5
    CAPABILITY_REQUIRED = 6
    SCOPE_DENIED = 7
    STALE_AUTHORITY = 8
    AUTHORITY_FENCED = 9
    OPERATION_CONFLICT = 10
    REVISION_CONFLICT = 11
    CURSOR_INVALID = 12
    RESOURCE_EXHAUSTED = 13
    NOT_FOUND = 14
    INTERNAL = 255


OBJECT_KIND = UInt(2, 1, max(ObjectKind))
_TAG = UInt(1, 0, 1)
CODE = UInt(2, 1, Code.NOT_FOUND, also=Code.INTERNAL)


class ObjectRef(Image):
    """One object (§7.1)."""

    kind: int = wire(1, OBJECT_KIND)
    id: bytes = wire(2, ID)

    def __str__(self) -> str:
        return f"{ObjectKind(self.kind).name} {self.id.hex()}"


REF = Struct(ObjectRef)


class Precondition(Image):
    """An object and the revision that it must have, 0 for absent (§7.1)."""

    object: ObjectRef = wire(1, REF)
    expected_revision: int = wire(2, U64)


class SnapshotRecord(Image):
    """One object at one revision (§7.1)."""

    kind: int = wire(1, OBJECT_KIND)
    id: bytes = wire(2, ID)
    revision: int = wire(3, COUNT64)
    schema: int = wire(4, U16)
    payload: bytes = wire(5, PAYLOAD)

    @property
    def ref(self) -> ObjectRef:
        """The object."""
        return ObjectRef(kind=self.kind, id=self.id)

    def decode(self) -> Message | None:
        """The payload as what its kind says; None when its schema is of a later version."""
        return RECORDS[ObjectKind(self.kind)].of_body(self.payload) if self.schema == SCHEMA else None


class AuthorityGuard(Image):
    """The authority that a request is meant for (§3). A zero in it is a mismatch, not malformed."""

    coordinator_id: bytes = wire(1, Fixed(16))
    authority_epoch: int = wire(2, U64)
    activation_sequence: int = wire(3, U64)
    fencing_token_sha256: bytes = wire(4, HASH)


class Certificate(Image):
    """An activation certificate (§4). Its form is held here, its signature in handshake.py."""

    version: int = wire(1, UInt(1, 1, 1))
    witness_id: bytes = wire(2, ID)
    coordinator_id: bytes = wire(3, ID)
    activation_sequence: int = wire(4, COUNT64)
    authority_epoch: int = wire(5, COUNT64)
    incarnation_id: bytes = wire(6, ID)
    fencing_token: bytes = wire(7, HASH)
    issued_at: int = wire(8, U64)
    expires_at: int = wire(9, U64)
    witness_key_id: bytes = wire(10, HASH)
    signature: bytes = wire(11, SIGNATURE)

    def check(self) -> None:
        if not self.issued_at < self.expires_at <= self.issued_at + 60:
            raise Malformed("a certificate for no time or for more than 60 s")

    def guard(self) -> AuthorityGuard:
        """The guard of requests under this certificate: it shows the token's hash only."""
        return AuthorityGuard(
            coordinator_id=self.coordinator_id, authority_epoch=self.authority_epoch,
            activation_sequence=self.activation_sequence, fencing_token_sha256=sha256(self.fencing_token))


class ReplayEvent(Image):
    """One event (§10)."""

    event_sequence: int = wire(1, COUNT64)
    event_id: bytes = wire(2, ID)
    event_kind: int = wire(3, UInt(2, 1, EventKind.EVIDENCE_SEALED, also=EventKind.OBJECT_REMOVED))
    object: ObjectRef = wire(4, REF)
    object_revision: int = wire(5, COUNT64)
    schema: int = wire(6, U16)
    payload: bytes = wire(7, PAYLOAD)

    def record(self) -> SnapshotRecord | None:
        """The record that the event carries, None for those that carry none. The payload is held
        to what the kind says it is, and to the event's own object and revision."""
        kind = EventKind(self.event_kind)
        if kind is EventKind.OBJECT_REMOVED:
            if ObjectRef.of_image(self.payload) != self.object:
                raise Malformed("an event that removes another object than its own")
        elif kind.carries_record:
            record = SnapshotRecord.of_image(self.payload)
            if record.ref != self.object or record.revision != self.object_revision:
                raise Malformed("an event that carries another record than its own")
            return record
        else:
            about = SourceFact if kind is EventKind.SOURCE_FACT_ADMITTED else SourceGap
            if self.object != ObjectRef(kind=ObjectKind.BINDING, id=about.of_image(self.payload).binding_id):
                raise Malformed("a source fact of another object than its binding")  # [D-16]
        return None


class ResourceId(Value[tuple[str, int]]):
    """A ResourceId: host and number, "" for the owner's own host (§11)."""

    def image(self, value: tuple[str, int]) -> bytes:
        host, number = value
        if host == "":
            return b"\0" + U32.image(number)
        self._check(host)
        return b"\1" + Text(255).image(host) + U32.image(number)

    def parse(self, reader: Reader) -> tuple[str, int]:
        if not _TAG.parse(reader):
            return "", U32.parse(reader)
        host = Text(255).parse(reader)
        self._check(host)
        return host, U32.parse(reader)

    @staticmethod
    def _check(host: str) -> None:
        if host == "" or any(c < " " or "\x7f" <= c <= "\x9f" for c in host):
            raise Malformed("a host without a name, or with control characters")


class TerminalBindingRef(Image):
    """One binding in full (§11)."""

    binding_id: bytes = wire(1, ID)
    work_session_id: bytes = wire(2, ID)
    owner_authority_fingerprint: bytes = wire(3, HASH)
    owner_incarnation: bytes = wire(4, ID)
    resource: tuple[str, int] = wire(5, Sized(ResourceId(), MAX_RESOURCE))


class SourceGap(Image):
    """Payload of SOURCE_GAP (§7.1); only Ended (2) may have observed nothing [D-35]."""

    binding_id: bytes = wire(1, ID)
    expected: int = wire(2, COUNT64)
    observed: int = wire(3, U64)
    reason: int = wire(4, UInt(1, 0, 2))

    def check(self) -> None:
        if self.observed == 0 and self.reason != 2:
            raise Malformed("a source gap that observed nothing")


class OutcomeFact(Image):
    """Payload of INPUT_RESULT and SIGNAL_RESULT."""

    effect_attempt_id: bytes = wire(1, ID)
    outcome: int = wire(2, UInt(1, 0, 2))


class OutputRange(Image):
    """Payload of OUTPUT_RANGE."""

    first: int = wire(1, U64)
    last: int = wire(2, U64)
    byte_count: int = wire(3, U64)
    content_sha256: bytes = wire(4, HASH)


class Closed(Image):
    """Payload of CLOSED."""

    exit_status: int | None = wire(1, Maybe(SInt32()))


class Opened(Image):
    """Payload of OPENED: nothing."""


class Attention(Image):
    """Payload of ATTENTION: Bell, Blocked or Failed."""

    kind: int = wire(1, UInt(2, 1, 3))


FACTS: tuple[type[Image], ...] = (Opened, Closed, OutcomeFact, OutcomeFact, OutputRange, Attention)


class SourceFact(Image):
    """What the owner of a terminal states (§11), payload of SOURCE_FACT_ADMITTED."""

    binding_id: bytes = wire(1, ID)
    owner_authority_fingerprint: bytes = wire(2, HASH)
    owner_incarnation: bytes = wire(3, ID)
    source_sequence: int = wire(4, COUNT64)
    kind: int = wire(5, UInt(2, 1, len(FACTS)))
    schema: int = wire(6, UInt(2, SCHEMA, SCHEMA))
    payload: bytes = wire(7, PAYLOAD)

    def check(self) -> None:
        FACTS[self.kind - 1].of_image(self.payload)


class Started(Image):
    """Result of START_RUN (§7.2)."""

    run_id: bytes = wire(1, ID)
    work_session_id: bytes = wire(2, ID)
    binding_id: bytes | None = wire(3, Maybe(ID))


class Document(Image):
    """Result DOCUMENT (§7.2)."""

    schema: int = wire(1, U16)
    payload: bytes = wire(2, PAYLOAD)


class Pending(Image):
    """Admitted, and not finished."""

    admitted_epoch: int = wire(1, COUNT64)
    admitted_event_sequence: int = wire(2, COUNT64)


class Succeeded(Image):
    """Done. result_kind says what the payload is."""

    completed_event_sequence: int = wire(1, COUNT64)
    result_kind: int = wire(2, UInt(2, 0, 3))
    payload: bytes = wire(3, PAYLOAD)

    def check(self) -> None:
        if self.result_kind == 0 and self.payload:
            raise Malformed("a result of no kind with a payload")
        if self.result_kind:
            (ObjectRef, Started, Document)[self.result_kind - 1].of_image(self.payload)


class Rejected(Image):
    """Admitted, and then refused."""

    completed_event_sequence: int = wire(1, COUNT64)
    error_code: int = wire(2, CODE)
    message: str = wire(3, Text(MAX_TEXT))


class Indeterminate(Image):
    """Nobody knows; it authorises no new work."""

    reason: int = wire(1, UInt(1, 0, 2))
    effect_attempt_id: bytes | None = wire(2, Maybe(ID))


class Tombstoned(Image):
    """Done so long ago that only how it ended is kept."""

    command_digest: bytes = wire(1, HASH)
    final_state: int = wire(2, UInt(1, 1, 3))


class Unknown(Image):
    """Not known to this coordinator, or not to be known by this key [D-11]."""


Result = Pending | Succeeded | Rejected | Indeterminate | Tombstoned | Unknown
RESULTS: tuple[type[Result], ...] = (Pending, Succeeded, Rejected, Indeterminate, Tombstoned, Unknown)


class OperationResult(Value[Result]):
    """A tag and the state of an operation (§8)."""

    def image(self, value: Result) -> bytes:
        return U8.image(RESULTS.index(type(value))) + value.image()

    def parse(self, reader: Reader) -> Result:
        return RESULTS[UInt(1, 0, len(RESULTS) - 1).parse(reader)].parse(reader)


def is_final(result: Result) -> bool:
    """Whether the operation will not change any more by itself."""
    return not isinstance(result, (Pending, Unknown))


class Objective(Message):
    """Active, Completed or Cancelled."""

    document_schema: int = wire(1, U16)
    document: bytes = wire(2, PAYLOAD)
    state: int = wire(3, UInt(1, 0, 2))


class Run(Message):
    """Planned, Running, Paused, Completed, Cancelled or Failed."""

    objective_id: bytes = wire(1, ID)
    attempt: int = wire(2, U32)
    state: int = wire(3, UInt(1, 0, 5))
    outcome: bytes | None = wire(4, PAYLOAD, default=None)


class WorkSession(Message):
    """Active or Ended."""

    run_id: bytes = wire(1, ID)
    state: int = wire(2, UInt(1, 0, 1))
    active_binding: bytes | None = wire(3, ID, default=None)


class Binding(Message):
    """Active or Ended."""

    binding: TerminalBindingRef = wire(1, Struct(TerminalBindingRef))
    state: int = wire(2, UInt(1, 0, 1))
    end_reason: int | None = wire(3, UInt(1, 0, 3), default=None)


class Artifact(Message):
    """The stub of an artifact."""

    work_session_id: bytes = wire(1, ID)
    latest_revision: int = wire(2, COUNT64)


class ArtifactManifest(Message):
    """The latest revision of an artifact [D-15]."""

    artifact_id: bytes = wire(1, ID)
    revision: int = wire(2, COUNT64)
    schema: int = wire(3, U16)
    manifest: bytes = wire(4, PAYLOAD)


class Signal(Message):
    """Open, Acknowledged, Suppressed or Resolved."""

    work_session_id: bytes = wire(1, ID)
    kind: int = wire(2, UInt(2, 1, 4))
    state: int = wire(3, UInt(1, 0, 3))
    message: str = wire(4, Text(MAX_TEXT))


class Operation(Message):
    """An operation and whose it is; the record's id is the OperationId."""

    principal_key_id: bytes = wire(1, HASH)
    result: Result = wire(2, OperationResult())


class Evidence(Message):
    """The seal of a binding, whose id the record has."""

    work_session_id: bytes = wire(1, ID)
    artifact_id: bytes = wire(2, ID)
    seal_sha256: bytes = wire(3, HASH)


class Activation(Message):
    """Payload of ADMIN/ACTIVATION [D-14]."""

    epoch: int = wire(1, COUNT64)
    activation: int = wire(2, COUNT64)
    incarnation: bytes = wire(3, ID)
    witness_id: bytes = wire(4, ID)
    witness_key_id: bytes = wire(5, HASH)
    activated_at: int = wire(6, U64)


class Retention(Message):
    """Payload of ADMIN/RETENTION [D-14] [D-42]."""

    operation_result_secs: int = wire(1, UInt(8, MIN_RETENTION))
    event_bytes: int = wire(2, COUNT64)
    artifact_bytes: int = wire(3, COUNT64)


class Credential(Message):
    """Payload of ADMIN/CREDENTIAL [D-14]."""

    key_id: bytes = wire(1, HASH)
    scope_ceiling: int = wire(2, U64)
    expires_at: int = wire(3, U64)
    revoked_at: int | None = wire(4, U64, default=None)


class Admin(Message):
    """An ADMIN record [D-14]."""

    admin_kind: int = wire(1, UInt(2, 1, 3))
    payload: bytes = wire(2, PAYLOAD)

    def check(self) -> None:
        (Activation, Retention, Credential)[self.admin_kind - 1].of_body(self.payload)


RECORDS: dict[ObjectKind, type[Message]] = {
    ObjectKind.OBJECTIVE: Objective, ObjectKind.RUN: Run, ObjectKind.WORK_SESSION: WorkSession, ObjectKind.BINDING: Binding,
    ObjectKind.ARTIFACT: Artifact, ObjectKind.SIGNAL: Signal, ObjectKind.OPERATION: Operation, ObjectKind.EVIDENCE: Evidence,
    ObjectKind.ADMIN: Admin, ObjectKind.ARTIFACT_MANIFEST: ArtifactManifest,
}


# --- digests ---


def sha256(*parts: bytes) -> bytes:
    """SHA-256 of the parts, one behind the other."""
    return hashlib.sha256(b"".join(parts)).digest()


def operation_digest(
    kind: int, payload: bytes, preconditions: Sequence[Precondition] = (), extensions: Sequence[Field] = ()) -> bytes:
    """What makes two commands the same (§8): not the request id, the guard or the OperationId."""
    ordered = sorted(p.image() for p in preconditions)
    return sha256(
        b"phux-coordinator-operation/v1\0", U16.image(0), U16.image(1), U16.image(kind), Blob(MAX_PAYLOAD).image(canonical(payload)),
        U16.image(len(ordered)), *ordered, Blob(1 << 20).image(write_fields(extensions)))


def snapshot_digest(guard: AuthorityGuard, base: int, records: Sequence[SnapshotRecord]) -> bytes:
    """The digest that SNAPSHOT_END names (§9). The count stands before the records, so it can
    be made only when all have come."""
    return sha256(
        b"phux-coordinator-snapshot/v1\0", guard.coordinator_id, U64.image(guard.authority_epoch),
        U64.image(guard.activation_sequence), U64.image(base), U64.image(len(records)), *(r.image() for r in records))


def replay_digest(guard: AuthorityGuard, subscription: bytes, after: int, cut: int, events: Sequence[ReplayEvent]) -> bytes:
    """The digest that REPLAY_END names (§10)."""
    return sha256(
        b"phux-coordinator-replay/v1\0", guard.coordinator_id, U64.image(guard.authority_epoch),
        U64.image(guard.activation_sequence), subscription, U64.image(after), U64.image(cut), U64.image(len(events)),
        *(e.image() for e in events))


def evidence_seal(coordinator: bytes, binding: bytes, facts: Sequence[SourceFact]) -> bytes:
    """The seal over the facts of a binding (§11). Here the count stands behind them."""
    return sha256(b"phux-coordinator-evidence/v1\0", coordinator, binding, *(f.image() for f in facts), U64.image(len(facts)))


def admin_record_id(kind: int, subject: bytes = b"") -> bytes:
    """The id of an ADMIN record [D-14]."""
    return sha256(b"phux-coordinator-admin/v1\0", U16.image(kind), subject)[:16]


