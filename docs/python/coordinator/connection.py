"""One connection to a coordinator over its Unix socket (protocol.md §2, §4, §5, §7).

It belongs to one thread, which must come back to it: whoever waits for a reply or for an event
also answers pings and takes in renewals, and a connection that nobody reads for 45 seconds is
closed by the coordinator [D-13]. Every step looks at the certificate first: what is read at its
expiry or later counts as not received.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
import struct
import time
from collections import deque
from typing import Any, Protocol

from . import handshake
from .codec import ProtocolError
from .context import Context
from .frames import (
    HEADER_BYTES, WORK_READ, AuthorityRenewed, CoordError, CoordEvent, CoordHelloOK, F, Frame, Gap, GetOperationResult, Limits,
    OpenSnapshot, Ping, Pong, ReplayBegin, ReplayPage, SnapshotApplied, SnapshotBegin, SnapshotNext, SnapshotPage, State,
    WorkloadChallenge, check_header, frame_cap,
)
from .memory import Memory
from .records import Certificate, Code

HANDSHAKE_SECONDS = 10.0  # the server's own limit [D-7]
REPLY_SECONDS = 30.0
MAX_REQUESTS = 128  # outstanding at once [D-27]
GRANT_SECONDS = 24 * 3600
_CHUNK = 64 << 10
_FATAL = (1, 2, 3, 4, 5, 8, 9)  # §13
_NOTHING_SAID = (1, 5, 9, 255)  # of what became of a request
_LASTING = (1, 3, 5, 6, 7)  # in answer to a hello
_BEFORE_SNAPSHOT = (OpenSnapshot, SnapshotNext, SnapshotApplied, GetOperationResult)  # [D-44]


class ConnectionEnded(Exception):
    """The connection is over, and every request on it that has no reply is of unknown outcome.
    code is that of the COORD_ERROR which said why, if one did."""

    def __init__(self, why: str, code: int | None = None) -> None:
        super().__init__(why)
        self.code = code


class NotAccepted(ConnectionEnded):
    """The coordinator refused the hello for a reason that another attempt does not change: the key,
    the version, a capability."""


class Refused(Exception):
    """A COORD_ERROR that answers one request, which has had no effect. Branch on code; the text is
    the peer's and for people."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = Code(code)


class TooLarge(Exception):
    """A frame that this connection does not carry. Not one byte of it left."""


FIRST_PAUSE, MAX_PAUSE = 0.1, 2.0  # seconds between attempts to connect


def lasting(e: Exception) -> bool:
    """Whether another attempt to connect would meet the same."""
    return isinstance(e, (NotAccepted, PermissionError)) or (isinstance(e, handshake.Untrusted) and not e.passing)


def describe(e: Exception) -> str:
    """An error in words, those of the system without their number."""
    return e.strerror or "timed out" if isinstance(e, OSError) else str(e)


class Clock:
    """The two clocks that a certificate is counted on."""

    def wall(self) -> float:
        """Seconds since 1970, as the certificate has them; it may be set."""
        return time.time()

    def boot(self) -> float:
        """Seconds since the machine started, suspend included; nobody sets it."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """A certificate and how long it counts here. The wall clock ends it, as the protocol says; so
    does as much time on CLOCK_BOOTTIME, so that a clock which is set back stretches nothing."""

    def __init__(self, certificate: Certificate, clock: Clock) -> None:
        self.certificate, self._clock = certificate, clock
        self._deadline = clock.boot() + (certificate.expires_at - clock.wall())

    def left(self) -> float:
        """Seconds until it has run out."""
        return min(self._deadline - self._clock.boot(), self.certificate.expires_at - self._clock.wall())


class Listener(Protocol):
    """A subscription, as its connection sees it."""

    def take_event(self, frame: CoordEvent, outer: int) -> None: ...
    def take_gap(self, frame: Gap) -> None: ...


@dataclasses.dataclass
class Options:
    """How to connect."""

    scope: int = WORK_READ
    offered: int = 0
    required: int = 0
    name: str = "python"
    limits: Limits = dataclasses.field(default_factory=Limits)
    clock: Clock = dataclasses.field(default_factory=Clock)


class Connection:
    """An authenticated connection whose authority has been verified and remembered."""

    def __init__(self, context: Context, memory: Memory, options: Options) -> None:
        """Connects, or raises Untrusted, LowerAuthority, Quarantined, ConnectionEnded or OSError."""
        self._clock, self._pins, self._memory = options.clock, context.pins, memory
        self._buffer = bytearray()
        self._state = State.GREETING
        self._ended: ConnectionEnded | None = None
        self._last_id = 0
        self._replies: dict[int, deque[Frame]] = {}  # of outstanding requests
        self.subscriptions: dict[bytes, Listener] = {}
        self.limits: Limits | None = None
        self._lease: Lease | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(context)
            self._greet(context, options)
        except BaseException:
            self._socket.close()
            raise
        self._memory.attach(self.close, self.guard.authority_epoch)

    def _connect(self, context: Context) -> None:
        self._socket.settimeout(HANDSHAKE_SECONDS)
        self._socket.connect(str(context.socket))
        raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", raw)
        if uid != os.geteuid():
            raise handshake.Untrusted("socket", "the process behind it is not this user's")

    # --- the handshake (§5) ---

    def _greet(self, context: Context, options: Options) -> None:
        deadline = self._clock.boot() + HANDSHAKE_SECONDS
        nonce = secrets.token_bytes(32)
        offer = handshake.hello(options.name, options.offered, options.required, options.limits, nonce)
        self._write(offer)
        challenge = self._next(WorkloadChallenge, deadline)
        handshake.check_challenge(challenge, nonce, self._pins.authority, (os.geteuid(), os.getegid(), os.getpid()))
        response = handshake.respond(challenge, context.key, options.scope, int(self._clock.wall()) + GRANT_SECONDS)
        self._state = State.PROVING
        self._write(response)
        answer = self._next(CoordHelloOK, deadline)
        handshake.check_answer(offer, challenge, response, answer, self._pins, int(self._clock.wall()))
        handshake.check_certificate(answer.activation_certificate, self._pins, int(self._clock.wall()))
        # Nothing of a server that fails a check is remembered, and nothing is acted on before
        # what is remembered is durable.
        self.verified = self._memory.accept(answer.activation_certificate)
        self._state = State.ACTIVE
        self.limits, self.answer, self.guard = answer.limits(), answer, answer.activation_certificate.guard()
        self._lease = Lease(answer.activation_certificate, self._clock)

    def _next(self, want: type[F], deadline: float) -> F:
        """The next frame of the handshake."""
        while True:
            got = self._read(deadline)
            if got is None:
                raise ConnectionEnded("no answer to the handshake")
            frame = got[0]
            if isinstance(frame, want):
                return frame
            if isinstance(frame, CoordError):
                raise (NotAccepted if frame.code in _LASTING else ConnectionEnded)(frame.message, frame.code)
            if not isinstance(frame, Pong):
                raise ProtocolError("a frame that must not come in the handshake")

    def _renew(self, certificate: Certificate) -> None:
        """Replaces the certificate in force by a later one of the same authority (§4)."""
        handshake.check_certificate(certificate, self._pins, int(self._clock.wall()))
        old = self._lease.certificate if self._lease else certificate
        if certificate.guard() != self.guard or certificate.incarnation_id != old.incarnation_id:
            raise handshake.Untrusted("activation certificate", "the renewal belongs to another authority")
        if certificate.expires_at <= old.expires_at:
            raise handshake.Untrusted("activation certificate", "the renewal expires no later than the one in force")
        self._lease = Lease(certificate, self._clock)

    # --- bytes ---

    def _write(self, frame: Frame) -> None:
        raw = frame.encode()
        if len(raw) - 4 > frame_cap(type(frame), self.limits):
            raise TooLarge(f"{type(frame).__name__} is larger than this connection carries")
        self._socket.settimeout(HANDSHAKE_SECONDS)
        try:
            self._socket.sendall(raw)
        except OSError as e:
            raise self.end(f"write: {describe(e)}") from None

    def _fill(self, count: int, deadline: float) -> bool:
        """Reads until count bytes wait. False: the deadline came first, and what came stays."""
        while len(self._buffer) < count:
            wait = deadline - self._clock.boot()
            if wait <= 0:
                return False
            self._socket.settimeout(wait)
            try:
                chunk = self._socket.recv(_CHUNK)
            except TimeoutError:
                return False
            except OSError as e:
                raise self.end(f"read: {describe(e)}") from None
            if not chunk:
                raise self.end("the coordinator closed the connection")
            self._buffer += chunk
        return True

    def _read(self, deadline: float) -> tuple[Frame, int] | None:
        """The next frame and its outer length, None when the deadline came first. The header is
        judged before anything waits for the body."""
        if not self._fill(HEADER_BYTES, deadline):
            return None
        kind, size = check_header(bytes(self._buffer[:HEADER_BYTES]), self._state, self.limits)
        outer = HEADER_BYTES + size
        if not self._fill(outer, deadline):
            return None
        body = bytes(self._buffer[HEADER_BYTES:outer])
        del self._buffer[:outer]
        return kind.of_body(body), outer

    # --- life ---

    def end(self, why: str, code: int | None = None) -> ConnectionEnded:
        """Closes for the first reason given, and gives it."""
        if self._ended is None:
            self._ended = ConnectionEnded(why, code)
            self._memory.detach(self.close)
            self._socket.close()
        return self._ended

    def close(self, why: str = "closed by this client") -> None:
        """Closes the connection."""
        self.end(why)

    def _live(self) -> None:
        """May the connection still act? Asked before anything is sent and before anything that
        was read is acted on."""
        if self._ended:
            raise self._ended
        if self._lease is None or self._lease.left() <= 0:
            raise self.end("the activation certificate ran out before it was renewed")

    def step(self, seconds: float) -> bool:
        """Takes in one frame, waiting for it up to so long. False: none came. Any failure ends the
        connection."""
        self._live()
        assert self._lease is not None
        deadline = self._clock.boot() + min(seconds, self._lease.left())
        try:
            got = self._read(deadline)
            self._live()
            if got is None:
                return False
            self._take(*got)
        except (ProtocolError, handshake.Untrusted) as e:
            self.end(str(e))
            raise
        return True

    def _take(self, frame: Frame, outer: int) -> None:
        """Acts on one frame."""
        if isinstance(frame, Ping):
            self._write(Pong(nonce=frame.nonce))
        elif isinstance(frame, AuthorityRenewed):
            self._renew(frame.activation_certificate)
        elif isinstance(frame, (CoordEvent, Gap)):
            listener = self.subscriptions.get(frame.subscription_id)
            if listener is None:
                raise ProtocolError("an event or a gap of no subscription")
            if isinstance(frame, Gap):
                listener.take_gap(frame)
            else:
                listener.take_event(frame, outer)
        elif isinstance(frame, CoordError):
            self._refused(frame)
        elif not isinstance(frame, Pong):
            self._deliver(frame)

    def _refused(self, frame: CoordError) -> None:
        """Acts on a COORD_ERROR (§13). It answers its request only where the code says that nothing
        was done: behind a fence, a revocation or an internal fault a commit may have happened, and
        its reply been withheld [D-48]."""
        definite = frame.request_id is not None and frame.code not in _NOTHING_SAID
        if definite:
            self._deliver(frame)
        if not definite or frame.code in _FATAL:
            ended = self.end(frame.message, frame.code)
            if not definite:
                raise ended

    # --- requests ---

    def _deliver(self, frame: Frame) -> None:
        waiting = self._replies.get(getattr(frame, "request_id", 0))
        if waiting is None or len(waiting) >= 2:  # a last page and its END share one request
            raise ProtocolError("an answer to no request")
        waiting.append(frame)

    def begin(self, kind: type[Frame], **fields: Any) -> int:
        """Sends a request and gives its id. Many may be outstanding."""
        self._live()
        if not self.verified and kind not in _BEFORE_SNAPSHOT:
            raise RuntimeError("a snapshot must verify under this authority first")  # [D-44]
        if len(self._replies) >= MAX_REQUESTS:
            raise RuntimeError("too many requests are outstanding")
        self._last_id += 1
        fields["request_id"] = self._last_id
        if "authority_guard" in kind.__dataclass_fields__:
            fields["authority_guard"] = self.guard
        frame = kind(**fields)
        self._replies[self._last_id] = deque()
        self._write(frame)
        return self._last_id

    def finish(self, request: int, want: type[F], seconds: float = REPLY_SECONDS) -> F:
        """The next reply to a request, or Refused. Without one in time the connection ends: a
        request that nobody waits for any more must not be mixed up with another."""
        deadline = self._clock.boot() + seconds
        replies = self._replies[request]
        while not replies:
            if self._clock.boot() >= deadline:
                raise self.end("no reply in time")
            self.step(deadline - self._clock.boot())
        frame = replies.popleft()
        if not _goes_on(frame):
            del self._replies[request]
        if isinstance(frame, CoordError):
            raise Refused(frame.code, frame.message)
        if not isinstance(frame, want):
            raise self.end("a reply of another kind than its request")
        return frame

    def tell(self, kind: type[Frame], **fields: Any) -> None:
        """Sends a frame that has no reply."""
        self._live()
        self._write(kind(**fields))


def _goes_on(frame: Frame) -> bool:
    """Whether END follows under the same request (§9)."""
    if isinstance(frame, (SnapshotBegin, ReplayBegin)):
        return frame.first_cursor is None
    return isinstance(frame, (SnapshotPage, ReplayPage)) and frame.next_cursor is None
