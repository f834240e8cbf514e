"""Commands that run once or not at all, over as many connections as that takes (protocol.md §4
[D-44], §8).

The OperationId and the whole command are durable before the first byte leaves. When an answer is
lost, nobody here knows whether the command ran: the operation is looked up, and only the same
command is sent again, under the same id.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from .codec import ID, U16, Message, ProtocolError, wire
from .connection import FIRST_PAUSE, MAX_PAUSE, REPLY_SECONDS, Connection, ConnectionEnded, Options, Refused, TooLarge, describe, lasting
from .context import Context
from .frames import CoordCommand, CoordCommandResult, GetOperationResult, OperationResultFrame
from .handshake import Untrusted
from .memory import LowerAuthority, Memory
from .records import PAYLOAD, Code, Rejected, Result, Succeeded, Unknown, is_final
from .snapshot import take_snapshot

CREATE_OBJECTIVE = 1


class CreateObjective(Message):
    """Payload of CREATE_OBJECTIVE (§7.2)."""

    objective_id: bytes = wire(1, ID)
    schema: int = wire(2, U16)
    document: bytes = wire(3, PAYLOAD)


class OutcomeUnknown(Exception):
    """The command may have run. Its id and all of it are remembered: resume finds out."""

    def __init__(self, operation: bytes, why: str) -> None:
        super().__init__(f"operation {operation.hex()} may have run: {why}")
        self.operation = operation


class NotSent(Exception):
    """Not one byte of the command left: it did not run."""


@dataclass
class Attempt:
    """A command, whether some attempt of it may have run, and why the last one gave no result."""

    operation: bytes
    kind: int
    payload: bytes
    deadline: float  # on CLOCK_BOOTTIME
    doubt: bool
    why: str = "no connection in time"


def new_id() -> bytes:
    """An id of any kind: 16 bytes of the system's randomness, never derived from anything (§3)."""
    while not any(made := secrets.token_bytes(16)):
        pass
    return made


class Session:
    """Sends commands, one at a time."""

    def __init__(self, context: Context, memory: Memory, options: Options, sleep: Callable[[float], None] = time.sleep) -> None:
        self._context, self._memory, self._options, self._sleep = context, memory, options, sleep
        self._connection: Connection | None = None

    def close(self) -> None:
        """Ends the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def do(self, operation: bytes, kind: int, payload: bytes, seconds: float, resumed: bool = False) -> Result:
        """Runs a command to its final result. resumed says that it was begun before: then it is
        looked up first. Raises Refused or NotSent when it certainly did not run, OutcomeUnknown when
        nobody knows by the end of its time, and LostHistory when nobody ever will."""
        attempt = Attempt(operation, kind, payload, self._options.clock.boot() + seconds, doubt=resumed)
        pause = FIRST_PAUSE
        while self._left(attempt.deadline) > 0:
            try:
                result = self._attempt(attempt)
                if is_final(result):
                    return result
                attempt.why = "it was admitted and has not finished"
            except (ConnectionEnded, ProtocolError, LowerAuthority, Untrusted, OSError) as e:
                self.close()
                attempt.why = describe(e)
                if lasting(e):
                    break
            self._sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, MAX_PAUSE)
        if attempt.doubt:
            raise OutcomeUnknown(operation, attempt.why)
        self._memory.settle(operation, 0, 0)
        raise NotSent(attempt.why)

    def _attempt(self, a: Attempt) -> Result:
        """One attempt on whatever connection there is."""
        connection = self._connected()
        result: Result = self._ask(connection, a.operation, self._left(a.deadline)) if a.doubt else Unknown()
        if isinstance(result, Unknown):
            self._memory.begin(a.operation, a.kind, a.payload)  # refuses one whose history was lost [D-26]
            again, a.doubt = a.doubt, True  # from its first byte on
            try:
                result = self._send(connection, a)
            except Refused as e:
                if e.code is Code.STALE_AUTHORITY:
                    raise connection.end("another authority took over") from None
                if again:
                    raise OutcomeUnknown(a.operation, f"refused with {e.code.name} now; an earlier attempt may have run") from None
                self._memory.settle(a.operation, 0, 0)
                raise
            except TooLarge as e:
                if again:
                    raise OutcomeUnknown(a.operation, f"{e}; an earlier attempt may have run") from None
                self._memory.settle(a.operation, 0, 0)
                raise NotSent(str(e)) from None
        if is_final(result):
            sequence = result.completed_event_sequence if isinstance(result, (Succeeded, Rejected)) else 0
            self._memory.settle(a.operation, connection.guard.activation_sequence, sequence)  # [D-26]
        return result

    def lookup(self, operation: bytes) -> Result:
        """What became of an operation. Unknown authorises no new work by itself."""
        return self._ask(self._connected(), operation, REPLY_SECONDS)

    def _connected(self) -> Connection:
        """A connection under whose authority a snapshot has verified."""
        if self._connection is None:
            self._connection = Connection(self._context, self._memory, self._options)
        if not self._connection.verified:
            take_snapshot(self._connection, self._memory)
        return self._connection

    def _left(self, deadline: float) -> float:
        return min(deadline - self._options.clock.boot(), REPLY_SECONDS)

    def _ask(self, connection: Connection, operation: bytes, seconds: float) -> Result:
        request = connection.begin(GetOperationResult, operation_id=operation)
        return connection.finish(request, OperationResultFrame, seconds).operation

    def _send(self, connection: Connection, a: Attempt) -> Result:
        request = connection.begin(CoordCommand, operation_id=a.operation, command_kind=a.kind, payload=a.payload)
        return connection.finish(request, CoordCommandResult, self._left(a.deadline)).operation
