#!/usr/bin/env python3
"""Creates an objective, once, whatever becomes of the answer:

    python3 work.py --context C create --title "Ship it"
    python3 work.py --context C lookup 0123…ef      what became of an operation
    python3 work.py --context C resume              finds out about every command of unknown outcome

Each result is one line of JSON. Exit codes are those of coordctl: 0 done, 2 usage, 3 refused,
4 authentication, 5 unavailable, 6 outcome unknown.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from coordinator import context, frames, memory
from coordinator.codec import ProtocolError
from coordinator.commands import CREATE_OBJECTIVE, CreateObjective, NotSent, OutcomeUnknown, Session, new_id
from coordinator.connection import ConnectionEnded, NotAccepted, Options, Refused
from coordinator.handshake import Untrusted
from coordinator.records import SCHEMA, Code, Indeterminate, Rejected, Result, Unknown
from coordinator.snapshot import Outgrown
from coordinator.text import inert


def tell(operation: bytes, result: Result, **more: str) -> int:
    """Prints a result and gives the exit code that it stands for."""
    words: dict[str, Any] = {"operation_id": operation.hex(), **more, "state": type(result).__name__.upper()}
    for f in dataclasses.fields(result):
        value = getattr(result, f.name)
        words[f.name] = value.hex() if isinstance(value, bytes) else value
    print(json.dumps(words), flush=True)
    if isinstance(result, (Indeterminate, Unknown)):
        return complain(6, f"operation {operation.hex()} is {type(result).__name__.upper()}")
    if isinstance(result, Rejected):
        return complain(3, f"REJECTED: {Code(result.error_code).name} {result.message}")
    return 0


def complain(code: int, what: str) -> int:
    """Says what went wrong, whoever chose the words."""
    print(f"work.py: {inert(what, 500)}", file=sys.stderr)
    return code


def create(session: Session, title: str, seconds: float) -> int:
    """Makes an objective under a new OperationId."""
    operation, objective = new_id(), new_id()
    payload = CreateObjective(objective_id=objective, schema=SCHEMA, document=json.dumps({"title": title}).encode()).body()
    result = session.do(operation, CREATE_OBJECTIVE, payload, seconds)
    return tell(operation, result, objective_id=objective.hex())


def resume(session: Session, remembered: memory.Memory, seconds: float) -> int:
    """Finds out what became of each command whose outcome is not known, and sends again those that
    the coordinator has never seen: the same command under the same id."""
    code = 0
    for operation, kind, payload, _ in remembered.unresolved():
        try:
            code = tell(operation, session.do(operation, kind, payload, seconds, resumed=True)) or code
        except memory.LostHistory as e:
            code = complain(6, f"operation {operation.hex()} is indeterminate: {e}")
    return code


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--context", required=True, help="context.toml of the coordinator")
    p.add_argument("--timeout", type=float, default=30, metavar="SECONDS", help="for one command, over all its attempts")
    verbs = p.add_subparsers(dest="verb", required=True)
    verbs.add_parser("create", help="create an objective").add_argument("--title", required=True)
    verbs.add_parser("lookup", help="what became of an operation").add_argument("operation", type=operation_id)
    verbs.add_parser("resume", help="find out about every command of unknown outcome")
    return p.parse_args()


def operation_id(text: str) -> bytes:
    raw = bytes.fromhex(text)
    if len(raw) != 16:
        raise ValueError("an OperationId is 32 hex digits")
    return raw


def run(args: argparse.Namespace) -> int:
    known = context.load(args.context)
    remembered = memory.Memory(known.path.parent, known.pins.coordinator_id)
    session = Session(known, remembered, Options(scope=frames.WORK_READ | frames.WORK_COMMAND, name="work.py"))
    try:
        if args.verb == "create":
            return create(session, args.title, args.timeout)
        if args.verb == "lookup":
            return tell(args.operation, session.lookup(args.operation))
        return resume(session, remembered, args.timeout)
    finally:
        session.close()


def main() -> int:
    args = arguments()
    try:
        return run(args)
    except (context.BadContext, memory.BadMemory) as e:
        return complain(2, str(e))
    except Refused as e:
        return complain(3, f"{e.code.name}: {e}")
    except (Untrusted, NotAccepted, memory.LowerAuthority, memory.Quarantined) as e:
        return complain(4, str(e))
    except (NotSent, ConnectionEnded, ProtocolError, Outgrown, OSError) as e:
        return complain(5, f"not done: {e}")
    except OutcomeUnknown as e:
        return complain(6, f"{e}; next: work.py --context {args.context} resume")
    except memory.LostHistory as e:
        return complain(6, str(e))


if __name__ == "__main__":
    sys.exit(main())
