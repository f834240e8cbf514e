"""The proof of both sides and what a certificate is held to (protocol.md §4, §5).

Nothing here does I/O: bytes, pins and times come in, a verdict goes out.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from . import ed25519
from .codec import U16, U32, U64
from .frames import (
    MAJOR, MINOR, PATCH, PROFILE, SERVICE, CoordHello, CoordHelloOK, Limits, WorkloadChallenge, WorkloadOffer, WorkloadResponse,
)
from .records import Certificate, sha256

UDS_PEER = 1
MAX_ISSUED_AHEAD = 2  # seconds; clocks differ
_ACTIVATION = b"phux-coordinator-activation/v1\0"


class Untrusted(Exception):
    """The process at the other end is not what the pins ask for. passing says that another attempt
    may fare better: a certificate that has just run out."""

    def __init__(self, what: str, detail: str, passing: bool = False) -> None:
        super().__init__(f"{what}: {detail}")
        self.passing = passing


@dataclass(frozen=True)
class Pins:
    """What a client knows beforehand, out of band, and trusts."""

    coordinator_id: bytes
    authority: bytes  # fingerprint
    witness_id: bytes
    witness_public_key: bytes


def same(a: bytes, b: bytes) -> bool:
    """Equality in constant time (§5.1)."""
    return hmac.compare_digest(a, b)


def v16(raw: bytes) -> bytes:
    """A u16 length and the bytes: the form of names in transcripts (§5.3)."""
    return U16.image(len(raw)) + raw


def uds_binding(server_nonce: bytes, uid: int, gid: int, pid: int) -> bytes:
    """What binds a proof to one connection over a Unix socket (§5.4): the process that connected,
    as the kernel named it to the server, and as it knows itself."""
    return sha256(b"phux-workload/v1\0uds-peer\0", server_nonce, U64.image(uid), U64.image(gid), U64.image(pid))


def tls_context(service: str) -> bytes:
    """The exporter's context on QUIC (§5.4), for a client that has a TLS library which exports."""
    return sha256(b"phux-workload/v1\0tls-context\0", v16(service.encode()), U16.image(MAJOR), U16.image(MINOR))


def _terms(challenge: WorkloadChallenge) -> bytes:
    """What both transcripts have in common (§5.3)."""
    return (v16(challenge.service.encode()) + U16.image(challenge.negotiated_major) + U16.image(challenge.negotiated_minor)
            + challenge.client_nonce + challenge.server_nonce + challenge.server_incarnation
            + bytes((challenge.channel_binding_kind,)) + challenge.channel_binding + challenge.authority_public_key)


def server_transcript(challenge: WorkloadChallenge) -> bytes:
    """SERVER, which the authority key signs."""
    return b"phux-workload/v1\0server-proof\0" + _terms(challenge)


def client_transcript(challenge: WorkloadChallenge, key_id: bytes, expiry: int, scope: bytes) -> bytes:
    """CLIENT, which the workload key signs."""
    return (b"phux-workload/v1\0client-proof\0" + _terms(challenge) + challenge.authority_proof + key_id
            + U64.image(expiry) + U32.image(len(scope)) + scope)


def hello(name: str, offered: int, required: int, limits: Limits, nonce: bytes) -> CoordHello:
    """The first frame. A nonce is used once."""
    return CoordHello(
        protocol_major=MAJOR, protocol_minor=MINOR, protocol_patch=PATCH, client_name=name, offered_capabilities=offered,
        required_capabilities=required, max_frame_bytes=limits.frame_bytes, max_page_bytes=limits.page_bytes,
        max_page_records=limits.page_records, max_typed_payload_bytes=limits.typed_payload,
        max_event_credit_count=limits.credit_count, max_event_credit_bytes=limits.credit_bytes,
        workload_offer=WorkloadOffer(profile=PROFILE, client_nonce=nonce))


def check_challenge(challenge: WorkloadChallenge, nonce: bytes, authority: bytes, peer: tuple[int, int, int]) -> None:
    """Everything that is verified before anything is signed (§5.5): the echo of our offer, the
    binding against our own channel, the pin of the authority key, and then its proof."""
    if not same(challenge.client_nonce, nonce):
        raise Untrusted("handshake", "the challenge answers another offer")
    if challenge.service != SERVICE:
        raise Untrusted("handshake", "the challenge is of another service")
    if (challenge.negotiated_major, challenge.negotiated_minor) != (MAJOR, MINOR):
        raise Untrusted("handshake", "the challenge is of another version")
    own = uds_binding(challenge.server_nonce, *peer)
    if challenge.channel_binding_kind != UDS_PEER or not same(challenge.channel_binding, own):
        raise Untrusted("channel binding", "the proof is for another connection: something relays this one, or the "
                        "two sides see different process ids")
    if not same(sha256(challenge.authority_public_key), authority):
        raise Untrusted("authority", "the server shows another key than the pinned one")
    if not ed25519.verify(challenge.authority_public_key, server_transcript(challenge), challenge.authority_proof):
        raise Untrusted("authority", "the server shows the pinned key and cannot prove that it holds it")


def respond(challenge: WorkloadChallenge, key: ed25519.Key, scope: int, expiry: int) -> WorkloadResponse:
    """Our half of the proof, for a challenge that check_challenge has accepted."""
    key_id, scope_bytes = sha256(key.public), U64.image(scope)
    return WorkloadResponse(
        key_id=key_id, requested_scope_bytes=scope_bytes, requested_expiry=expiry,
        workload_proof=key.sign(client_transcript(challenge, key_id, expiry, scope_bytes)))


def check_answer(
    offer: CoordHello, challenge: WorkloadChallenge, response: WorkloadResponse, answer: CoordHelloOK, pins: Pins, now: int,
) -> None:
    """Everything that COORD_HELLO_OK is held to but its certificate (§5.5, §5.6): no more than was
    asked for, nothing less than was required, and the incarnation that proved itself."""
    grant, limits = answer.workload_grant, answer.limits()
    offered = Limits(offer.max_frame_bytes, offer.max_page_bytes, offer.max_page_records, offer.max_typed_payload_bytes,
                     offer.max_event_credit_count, offer.max_event_credit_bytes)
    scope = U64.of_field(grant.effective_scope_bytes)
    checks = (
        ("version", (answer.protocol_major, answer.protocol_minor) == (MAJOR, MINOR)),
        ("capabilities", not answer.negotiated_capabilities & ~offer.offered_capabilities
         and not offer.required_capabilities & ~answer.negotiated_capabilities),
        ("limits", limits.within(offered) and limits.fit()),
        ("incarnation_id", same(answer.incarnation_id, challenge.server_incarnation)),
        ("key_id", same(grant.key_id, response.key_id)),
        ("authority_fingerprint", same(grant.authority_fingerprint, pins.authority)),
        ("effective_scope_bytes", scope != 0 and not scope & ~U64.of_field(response.requested_scope_bytes)),
        ("expires_at", now < grant.expires_at <= response.requested_expiry),
        ("coordinator_id", same(answer.coordinator_id, pins.coordinator_id)),
    )
    for what, holds in checks:
        if not holds:
            raise Untrusted("COORD_HELLO_OK", f"{what} is not what was asked for")
    certificate = answer.activation_certificate
    if certificate.authority_epoch != answer.authority_epoch or not same(certificate.incarnation_id, answer.incarnation_id):
        raise Untrusted("activation certificate", "its epoch or incarnation is not the server's")


def check_certificate(certificate: Certificate, pins: Pins, now: int) -> None:
    """Pins, signature and times of a certificate at now, in Unix seconds (§4). Its form was held
    when it was decoded."""
    if not same(certificate.witness_id, pins.witness_id):
        raise Untrusted("witness_id", "the certificate is from another witness")
    if not same(certificate.coordinator_id, pins.coordinator_id):
        raise Untrusted("coordinator_id", "the certificate is for another coordinator")
    preimage = _ACTIVATION + certificate.image()[:145]
    if (not same(certificate.witness_key_id, sha256(pins.witness_public_key))
            or not ed25519.verify(pins.witness_public_key, preimage, certificate.signature)):
        raise Untrusted("witness_public_key", "the certificate is not signed with the pinned witness key")
    if certificate.issued_at > now + MAX_ISSUED_AHEAD:
        raise Untrusted("activation certificate", "it was issued ahead of this machine's clock; compare the clocks", True)
    if now >= certificate.expires_at:
        raise Untrusted("activation certificate", "it has expired by this machine's clock; compare the clocks", True)
