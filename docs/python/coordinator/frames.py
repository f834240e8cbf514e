"""Every frame of the endpoint, the caps of its length and the states it may come in
(protocol.md §2, §5.6, §7 to §10).

Field names are the protocol's.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import ClassVar, Self, TypeVar, dataclass_transform

from .codec import (
    BOOL, COUNT32, COUNT64, HASH, ID, NONCE, SIGNATURE, U16, U32, U64, Blob, Field, Fixed, Image, Listed, Malformed,
    Message, ProtocolError, Sized, Struct, Text, TooLarge, UInt, ascending, read_fields, wire, write_fields,
)
from .records import (
    CODE, MAX_TEXT, MIN_RETENTION, PAYLOAD, REF, AuthorityGuard, Certificate, EventKind, ObjectRef, OperationResult,
    Precondition, ReplayEvent, Result, SnapshotRecord,
)

SERVICE = "phux-coordinator"
PROFILE = "phux-workload/v1"
MAJOR, MINOR, PATCH = 0, 1, 0

HEADER_BYTES = 5
MAX_FRAME = 1 << 20
MAX_HANDSHAKE = 16 << 10
MAX_PAGE_RECORDS = 1024
MAX_CURSOR = 4 << 10

CURSOR = Blob(MAX_CURSOR)
GUARD = Struct(AuthorityGuard)
CERTIFICATE = Struct(Certificate)
EVENT_KIND = UInt(2, 1, EventKind.EVIDENCE_SEALED, also=EventKind.OBJECT_REMOVED)

# Capabilities (§5.6, §12) and scopes.
EVENT_REPLAY, TERMINAL_BINDINGS, ARTIFACT_MANIFESTS, SIGNALS, ADMINISTRATION = 0x01, 0x02, 0x04, 0x08, 0x10
OBJECTIVE_LIFECYCLE, WITHOUT_OPERATIONS, ARCHIVE = 1 << 32, 1 << 33, 1 << 34
WORK_READ, WORK_COMMAND, TERMINAL_CONTROL, ARTIFACT_READ, SIGNAL_ACK, ADMIN = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20

FROM_CLIENT, FROM_SERVER = 1, 2


@dataclasses.dataclass(frozen=True)
class Limits:
    """The six values that the hello selects (§2.3)."""

    frame_bytes: int = 512 << 10
    page_bytes: int = 256 << 10
    page_records: int = 512
    typed_payload: int = 128 << 10
    credit_count: int = 1024
    credit_bytes: int = 4 << 20

    def fit(self) -> bool:
        """Whether they fit together: the frame holds a page and a payload, the credit an event."""
        room = self.frame_bytes - 512
        return (self.frame_bytes >= 2048 and self.page_bytes <= room and self.typed_payload <= room
                and self.credit_bytes >= self.largest_event())

    def within(self, offer: Limits) -> bool:
        """Whether no value is above its offer."""
        return all(a <= b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(offer)))

    def largest_event(self) -> int:
        """The outer length of the largest COORD_EVENT, which is what its credit is charged [D-37]."""
        return self.typed_payload + 112


TYPES: dict[int, type[Frame]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
class Frame(Message):
    """One frame of the endpoint (§7)."""

    TYPE: ClassVar[int] = 0
    SENDER: ClassVar[int] = 0
    STRICT: ClassVar[bool] = False  # every field, ascending, and no other (§5.2)

    def __init_subclass__(cls, *, type: int = 0, sender: int = 0, strict: bool = False) -> None:
        super().__init_subclass__()
        cls.TYPE, cls.SENDER, cls.STRICT = type, sender, strict
        if type:
            TYPES[type] = cls

    @classmethod
    def of_body(cls, body: bytes) -> Self:
        fields = read_fields(body)
        if cls.STRICT and [n for n, _ in fields] != list(range(1, len(dataclasses.fields(cls)) + 1)):
            raise Malformed("fields out of order or of no name in a frame of the proof")
        return cls.of_fields(fields)

    def encode(self) -> bytes:
        """The whole outer frame (§2)."""
        body = self.body()
        return (1 + len(body)).to_bytes(4, "big") + bytes((self.TYPE,)) + body


F = TypeVar("F", bound=Frame)


class State(Enum):
    """How far a connection is, as its client sees it (§5)."""

    GREETING = 1  # COORD_HELLO is out
    PROVING = 2  # WORKLOAD_RESPONSE is out
    ACTIVE = 3  # COORD_HELLO_OK was accepted


def check_header(header: bytes, state: State, limits: Limits | None) -> tuple[type[Frame], int]:
    """What the five bytes before a body announce: its frame and how many bytes it has. Everything
    is held here, before a byte is reserved: the outer range, type, direction and state, the cap."""
    length = int.from_bytes(header[:4], "big")
    if not 1 <= length <= MAX_FRAME:
        raise TooLarge("a frame length of zero or above 1 MiB")
    kind = TYPES.get(header[4])
    if kind is None or not kind.SENDER & FROM_SERVER or not _may_come(kind, state):
        raise ProtocolError("a frame that must not come here")
    if length > frame_cap(kind, limits if state is State.ACTIVE else None):
        raise TooLarge("a frame above its cap")
    return kind, length - 1


def _may_come(kind: type[Frame], state: State) -> bool:
    if state is State.GREETING:
        return kind in (WorkloadChallenge, Pong, CoordError)
    if state is State.PROVING:
        return kind in (CoordHelloOK, CoordError)
    return kind not in (WorkloadChallenge, CoordHelloOK)


def frame_cap(kind: type[Frame], limits: Limits | None) -> int:
    """The cap of `length` [D-28]; limits are None before COORD_HELLO_OK."""
    if limits is None or kind in (CoordHello, CoordHelloOK, WorkloadChallenge, WorkloadResponse):
        return MAX_HANDSHAKE
    if kind in (SnapshotPage, ReplayPage):
        return limits.page_bytes + 512
    if kind is CoordEvent:
        return limits.typed_payload + 512
    if kind is CoordCommand:
        return min(limits.frame_bytes, limits.typed_payload + 4096)
    return limits.frame_bytes


# --- the handshake (§5) ---


class WorkloadOffer(Image):
    """What a client brings into the proof."""

    profile: str = wire(1, Text(MAX_HANDSHAKE))
    client_nonce: bytes = wire(2, NONCE)


class WorkloadGrant(Image):
    """What the server granted."""

    key_id: bytes = wire(1, HASH)
    authority_fingerprint: bytes = wire(2, HASH)
    expires_at: int = wire(3, U64)
    effective_scope_bytes: bytes = wire(4, Sized(Fixed(8), 8))


class CoordHello(Frame, type=0x01, sender=FROM_CLIENT):
    """COORD_HELLO."""

    protocol_major: int = wire(1, U16)
    protocol_minor: int = wire(2, U16)
    protocol_patch: int = wire(3, U16)
    client_name: str = wire(4, Text(128))
    offered_capabilities: int = wire(5, U64)
    required_capabilities: int = wire(6, U64)
    max_frame_bytes: int = wire(7, UInt(4, 1, MAX_FRAME))
    max_page_bytes: int = wire(8, UInt(4, 1, 512 << 10))
    max_page_records: int = wire(9, UInt(2, 1, MAX_PAGE_RECORDS))
    max_typed_payload_bytes: int = wire(10, UInt(4, 1, 256 << 10))
    max_event_credit_count: int = wire(11, UInt(4, 1, 4096))
    max_event_credit_bytes: int = wire(12, UInt(4, 1, 8 << 20))
    workload_offer: WorkloadOffer = wire(13, Struct(WorkloadOffer))


class CoordHelloOK(Frame, type=0x80, sender=FROM_SERVER):
    """COORD_HELLO_OK."""

    protocol_major: int = wire(1, U16)
    protocol_minor: int = wire(2, U16)
    protocol_patch: int = wire(3, U16)
    negotiated_capabilities: int = wire(4, U64)
    coordinator_id: bytes = wire(5, ID)
    authority_epoch: int = wire(6, COUNT64)
    incarnation_id: bytes = wire(7, ID)
    max_frame_bytes: int = wire(8, UInt(4, 1, MAX_FRAME))
    max_page_bytes: int = wire(9, UInt(4, 1, 512 << 10))
    max_page_records: int = wire(10, UInt(2, 1, MAX_PAGE_RECORDS))
    max_typed_payload_bytes: int = wire(11, UInt(4, 1, 256 << 10))
    max_event_credit_count: int = wire(12, UInt(4, 1, 4096))
    max_event_credit_bytes: int = wire(13, UInt(4, 1, 8 << 20))
    workload_grant: WorkloadGrant = wire(14, Struct(WorkloadGrant))
    operation_result_retention_secs: int = wire(15, UInt(8, MIN_RETENTION))
    activation_certificate: Certificate = wire(16, CERTIFICATE)

    def limits(self) -> Limits:
        """What was selected."""
        return Limits(self.max_frame_bytes, self.max_page_bytes, self.max_page_records, self.max_typed_payload_bytes,
                      self.max_event_credit_count, self.max_event_credit_bytes)


class WorkloadChallenge(Frame, type=0x84, sender=FROM_SERVER, strict=True):
    """WORKLOAD_CHALLENGE (§5.2)."""

    profile: str = wire(1, Text(MAX_HANDSHAKE, prefixed=True))
    service: str = wire(2, Text(MAX_HANDSHAKE, prefixed=True))
    negotiated_major: int = wire(3, U16)
    negotiated_minor: int = wire(4, U16)
    client_nonce: bytes = wire(5, NONCE)
    server_nonce: bytes = wire(6, NONCE)
    server_incarnation: bytes = wire(7, ID)
    channel_binding_kind: int = wire(8, UInt(1, 0, 1))
    channel_binding: bytes = wire(9, HASH)
    authority_public_key: bytes = wire(10, HASH)
    authority_proof: bytes = wire(11, SIGNATURE)

    def check(self) -> None:
        if self.profile != PROFILE:
            raise Malformed("a challenge of another profile")


class WorkloadResponse(Frame, type=0x04, sender=FROM_CLIENT, strict=True):
    """WORKLOAD_RESPONSE (§5.2)."""

    key_id: bytes = wire(1, HASH)
    requested_scope_bytes: bytes = wire(2, Blob(MAX_HANDSHAKE, prefixed=True))
    requested_expiry: int = wire(3, U64)
    workload_proof: bytes = wire(4, SIGNATURE)


# --- control (§7) ---


class Ack(Frame, type=0x82, sender=FROM_SERVER):
    """ACK."""

    request_id: int = wire(1, COUNT32)


class Ping(Frame, type=0x7F, sender=FROM_CLIENT | FROM_SERVER):
    """COORD_PING."""

    nonce: int = wire(1, U64)


class Pong(Frame, type=0xFF, sender=FROM_CLIENT | FROM_SERVER):
    """COORD_PONG."""

    nonce: int = wire(1, U64)


class AuthorityRenewed(Frame, type=0x83, sender=FROM_SERVER):
    """COORD_AUTHORITY_RENEWED."""

    activation_certificate: Certificate = wire(1, CERTIFICATE)


class CoordError(Frame, type=0xC0, sender=FROM_CLIENT | FROM_SERVER):
    """COORD_ERROR; without a request id it concerns the connection."""

    request_id: int | None = wire(1, COUNT32, default=None)
    code: int = wire(2, CODE)
    message: str = wire(3, Text(MAX_TEXT))


# --- operations (§8) ---


class CoordCommand(Frame, type=0x10, sender=FROM_CLIENT):
    """COORD_COMMAND. Its unknown fields are extensions and count in its digest."""

    request_id: int = wire(1, COUNT32)
    authority_guard: AuthorityGuard = wire(2, GUARD)
    operation_id: bytes = wire(3, ID)
    command_kind: int = wire(4, U16)
    payload: bytes = wire(5, PAYLOAD)
    preconditions: tuple[Precondition, ...] | None = wire(6, Listed(Struct(Precondition), 64), default=None)
    extensions: tuple[Field, ...] = ()

    @classmethod
    def of_body(cls, body: bytes) -> Self:
        fields = read_fields(body)
        made = cls.of_fields(fields)
        ordered = sorted(made.preconditions or (), key=lambda p: p.image())  # [D-25]
        return dataclasses.replace(
            made, preconditions=tuple(ordered) or None, extensions=tuple(sorted(f for f in fields if f[0] > 6)))

    def body(self) -> bytes:
        return write_fields(self.known() + list(self.extensions))

    def check(self) -> None:
        objects = [p.object.image() for p in self.preconditions or ()]
        if len(set(objects)) != len(objects):
            raise Malformed("two preconditions on one object")


class CoordCommandResult(Frame, type=0x90, sender=FROM_SERVER):
    """COORD_COMMAND_RESULT."""

    request_id: int = wire(1, COUNT32)
    operation: Result = wire(2, OperationResult())


class GetOperationResult(Frame, type=0x11, sender=FROM_CLIENT):
    """GET_OPERATION_RESULT."""

    request_id: int = wire(1, COUNT32)
    authority_guard: AuthorityGuard = wire(2, GUARD)
    operation_id: bytes = wire(3, ID)


class OperationResultFrame(Frame, type=0x91, sender=FROM_SERVER):
    """OPERATION_RESULT."""

    request_id: int = wire(1, COUNT32)
    operation: Result = wire(2, OperationResult())


# --- snapshots (§9) ---


class ActivationBase(Image):
    """An activation and the event head at which it began [D-26]."""

    activation: int = wire(1, COUNT64)
    base: int = wire(2, U64)


class OpenSnapshot(Frame, type=0x20, sender=FROM_CLIENT):
    """OPEN_SNAPSHOT."""

    request_id: int = wire(1, COUNT32)
    authority_guard: AuthorityGuard = wire(2, GUARD)
    selector: int = wire(3, UInt(1, 0, 0))
    reserve_subscription: bool = wire(4, BOOL)
    replace_paused_subscription: bytes | None = wire(5, ID, default=None)


class SnapshotBegin(Frame, type=0xA0, sender=FROM_SERVER):
    """SNAPSHOT_BEGIN."""

    request_id: int = wire(1, COUNT32)
    snapshot_id: bytes = wire(2, ID)
    authority_guard: AuthorityGuard = wire(3, GUARD)
    base_event_sequence: int = wire(4, U64)
    first_cursor: bytes | None = wire(5, CURSOR, default=None)
    subscription_id: bytes | None = wire(6, ID, default=None)
    lease_expires_at: int = wire(7, U64)
    activation_bases: tuple[ActivationBase, ...] | None = wire(8, Listed(Struct(ActivationBase), 64), default=None)

    def check(self) -> None:
        bases = self.activation_bases or ()
        heads = [b.base for b in bases]
        if not ascending([b.activation for b in bases]) or heads != sorted(heads):
            raise Malformed("activation bases out of order")


class SnapshotNext(Frame, type=0x21, sender=FROM_CLIENT):
    """SNAPSHOT_NEXT."""

    request_id: int = wire(1, COUNT32)
    snapshot_id: bytes = wire(2, ID)
    cursor: bytes = wire(3, CURSOR)


class SnapshotPage(Frame, type=0xA1, sender=FROM_SERVER):
    """SNAPSHOT_PAGE. Records stand in (kind, id) order, none twice."""

    request_id: int = wire(1, COUNT32)
    snapshot_id: bytes = wire(2, ID)
    cursor: bytes = wire(3, CURSOR)
    page_index: int = wire(4, U32)
    records: tuple[SnapshotRecord, ...] = wire(5, Listed(Struct(SnapshotRecord), MAX_PAGE_RECORDS))
    next_cursor: bytes | None = wire(6, CURSOR, default=None)

    def check(self) -> None:
        if not ascending([(r.kind, r.id) for r in self.records]):
            raise Malformed("records out of order")


class SnapshotEnd(Frame, type=0xA2, sender=FROM_SERVER):
    """SNAPSHOT_END."""

    request_id: int = wire(1, COUNT32)
    snapshot_id: bytes = wire(2, ID)
    page_count: int = wire(3, U32)
    record_count: int = wire(4, U64)
    canonical_sha256: bytes = wire(5, HASH)


class SnapshotApplied(Frame, type=0x22, sender=FROM_CLIENT):
    """SNAPSHOT_APPLIED."""

    request_id: int = wire(1, COUNT32)
    snapshot_id: bytes = wire(2, ID)
    subscription_id: bytes | None = wire(3, ID, default=None)
    initial_credit_count: int = wire(4, U32)
    initial_credit_bytes: int = wire(5, U32)


# --- subscriptions and replay (§10) ---


class Subscribe(Frame, type=0x23, sender=FROM_CLIENT):
    """SUBSCRIBE."""

    request_id: int = wire(1, COUNT32)
    authority_guard: AuthorityGuard = wire(2, GUARD)
    after_event_sequence: int = wire(3, U64)
    initial_credit_count: int = wire(4, U32)
    initial_credit_bytes: int = wire(5, U32)


class Subscribed(Frame, type=0xA3, sender=FROM_SERVER):
    """SUBSCRIBED."""

    request_id: int = wire(1, COUNT32)
    subscription_id: bytes = wire(2, ID)
    next_delivery_sequence: int = wire(3, COUNT64)


class CoordEvent(Frame, type=0xB0, sender=FROM_SERVER):
    """COORD_EVENT."""

    subscription_id: bytes = wire(1, ID)
    delivery_sequence: int = wire(2, COUNT64)
    event_sequence: int = wire(3, COUNT64)
    event_id: bytes = wire(4, ID)
    event_kind: int = wire(5, EVENT_KIND)
    object: ObjectRef = wire(6, REF)
    object_revision: int = wire(7, COUNT64)
    schema: int = wire(8, U16)
    payload: bytes = wire(9, PAYLOAD)

    def event(self) -> ReplayEvent:
        """The event without the subscription that it came on: as a replay has it."""
        return ReplayEvent(
            event_sequence=self.event_sequence, event_id=self.event_id, event_kind=self.event_kind, object=self.object,
            object_revision=self.object_revision, schema=self.schema, payload=self.payload)


class Credit(Frame, type=0x24, sender=FROM_CLIENT):
    """CREDIT: more events and bytes; it acknowledges nothing."""

    subscription_id: bytes = wire(1, ID)
    add_count: int = wire(2, U32)
    add_bytes: int = wire(3, U32)


class GapReason(Enum):
    """Why a subscription paused."""

    QUEUE_OVERFLOW = 0
    RETENTION = 1
    EPOCH_CHANGED = 2
    SOURCE_GAP = 3
    CURSOR_INVALID = 4
    REVISION_MISMATCH = 5
    GRANT_REVOKED = 6
    INTERNAL = 7


class Gap(Frame, type=0xB1, sender=FROM_SERVER):
    """GAP: the subscription has missed something and is paused."""

    subscription_id: bytes = wire(1, ID)
    last_contiguous_delivery: int = wire(2, U64)
    last_contiguous_event: int = wire(3, U64)
    observed_event: int | None = wire(4, COUNT64, default=None)
    reason: int = wire(5, UInt(1, 0, len(GapReason) - 1))


class OpenReplay(Frame, type=0x25, sender=FROM_CLIENT):
    """OPEN_REPLAY."""

    request_id: int = wire(1, COUNT32)
    authority_guard: AuthorityGuard = wire(2, GUARD)
    subscription_id: bytes = wire(3, ID)
    after_event_sequence: int = wire(4, U64)


class ReplayBegin(Frame, type=0xA4, sender=FROM_SERVER):
    """REPLAY_BEGIN."""

    request_id: int = wire(1, COUNT32)
    replay_id: bytes = wire(2, ID)
    subscription_id: bytes = wire(3, ID)
    first_event: int | None = wire(4, COUNT64, default=None)
    replay_cut: int = wire(5, U64)
    first_cursor: bytes | None = wire(6, CURSOR, default=None)
    lease_expires_at: int = wire(7, U64)


class ReplayNext(Frame, type=0x26, sender=FROM_CLIENT):
    """REPLAY_NEXT."""

    request_id: int = wire(1, COUNT32)
    replay_id: bytes = wire(2, ID)
    cursor: bytes = wire(3, CURSOR)


class ReplayPage(Frame, type=0xA5, sender=FROM_SERVER):
    """REPLAY_PAGE. Events stand in ascending sequence."""

    request_id: int = wire(1, COUNT32)
    replay_id: bytes = wire(2, ID)
    cursor: bytes = wire(3, CURSOR)
    page_index: int = wire(4, U32)
    events: tuple[ReplayEvent, ...] = wire(5, Listed(Struct(ReplayEvent), MAX_PAGE_RECORDS))
    next_cursor: bytes | None = wire(6, CURSOR, default=None)

    def check(self) -> None:
        if not ascending([e.event_sequence for e in self.events]):
            raise Malformed("events out of order")


class ReplayEnd(Frame, type=0xA6, sender=FROM_SERVER):
    """REPLAY_END."""

    request_id: int = wire(1, COUNT32)
    replay_id: bytes = wire(2, ID)
    page_count: int = wire(3, U32)
    event_count: int = wire(4, U64)
    canonical_sha256: bytes = wire(5, HASH)


class ReplayApplied(Frame, type=0x27, sender=FROM_CLIENT):
    """REPLAY_APPLIED."""

    request_id: int = wire(1, COUNT32)
    replay_id: bytes = wire(2, ID)
    subscription_id: bytes = wire(3, ID)
    initial_credit_count: int = wire(4, U32)
    initial_credit_bytes: int = wire(5, U32)
