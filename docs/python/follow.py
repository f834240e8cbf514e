#!/usr/bin/env python3
"""Follows a coordinator and prints each change, once, and nothing that has not been verified:

    python3 follow.py --context ~/.local/state/coordinator/client/context.toml

It survives restarts of the coordinator. What it may have missed it says, and then heals it.
Ctrl-C ends it. Exit codes are those of coordctl: 0 ended, 2 usage, 4 the server or the key is not
to be trusted, 5 unavailable.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import json
import os
import signal
import sys
from typing import Any, cast

from coordinator import context, frames, memory
from coordinator.connection import NotAccepted, Options
from coordinator.follower import Change, Follower, Healed, Paused, Synced, Update
from coordinator.handshake import Untrusted
from coordinator.records import Objective, ObjectKind, SnapshotRecord
from coordinator.snapshot import Outgrown
from coordinator.text import inert

OFFERED = (frames.EVENT_REPLAY | frames.TERMINAL_BINDINGS | frames.ARTIFACT_MANIFESTS | frames.SIGNALS
           | frames.WITHOUT_OPERATIONS | frames.ARCHIVE)
STATES = ("Active", "Completed", "Cancelled")


def document(raw: bytes) -> dict[str, Any]:
    """A document as JSON where it is that, else in base64: whoever wrote it may have nested it
    deeper than can be read here, or than can be written, four levels further down."""
    try:
        found = json.loads(raw.decode())
        json.dumps([[[[found]]]], allow_nan=False)
        return {"document": found}
    except (ValueError, RecursionError):
        return {"document_base64": base64.b64encode(raw).decode()}


def title(objective: Objective) -> str | None:
    """The title in an objective's document, if it has one."""
    found: Any = document(objective.document).get("document")
    words: Any = cast(dict[str, Any], found).get("title") if isinstance(found, dict) else None
    return words if isinstance(words, str) else None


def plain(value: Any) -> Any:
    """A payload in the protocol's names, bytes as hex."""
    if isinstance(value, Objective):
        return {"document_schema": value.document_schema, **document(value.document), "state": STATES[value.state]}
    if isinstance(value, bytes):
        return value.hex()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def record(r: SnapshotRecord) -> dict[str, Any]:
    """A record as coordctl prints it."""
    head = {"kind": ObjectKind(r.kind).name, "id": r.id.hex(), "revision": r.revision, "schema": r.schema}
    payload = r.decode()
    return {**head, "payload": plain(payload if payload is not None else r.payload)}


def as_json(update: Update) -> str:
    """One update as one line of JSON. The encoder escapes what is not ASCII."""
    words: dict[str, Any] = {"update": type(update).__name__.lower()}
    if isinstance(update, Change):
        words["sequence"] = update.sequence
        words["before"], words["after"] = (record(r) if r else None for r in (update.before, update.after))
    else:
        words.update(dataclasses.asdict(update))
    return json.dumps(words)


def as_text(update: Update) -> str:
    """One update as one line for people, with nothing in it that steers a terminal."""
    if isinstance(update, Synced):
        lost = "; HISTORY WAS LOST: what was shown before is no longer there" if update.lost else ""
        return f"-- a snapshot has verified: epoch {update.epoch}, event {update.cut}{lost}"
    if isinstance(update, Paused):
        return f"-- gap: {inert(update.why)}"
    if isinstance(update, Healed):
        return f"-- healed: the events {update.how} (epoch {update.epoch})"
    return change(update)


def change(c: Change) -> str:
    """The line of one change."""
    at = "snapshot" if c.sequence is None else str(c.sequence)
    shown = c.after or c.before
    assert shown is not None
    name = f"{at:>8} {ObjectKind(shown.kind).name:<17} {shown.id.hex()}"
    if c.after is None:
        return f"{name} removed"
    payload = c.after.decode()
    words = ""
    if isinstance(payload, Objective):
        words = f" {STATES[payload.state]} {inert(title(payload) or '-')}"
    return f"{name} revision {c.after.revision}{words}"


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--context", required=True, help="context.toml of the coordinator")
    p.add_argument("-o", "--output", choices=("text", "json"), default="text")
    p.add_argument("--until", metavar="TITLE", help="end once an objective of this title has been shown")
    return p.parse_args()


def reached(update: Update, wanted: str | None) -> bool:
    """Whether this update shows the objective that was waited for."""
    if wanted is None or not isinstance(update, Change) or update.after is None:
        return False
    payload = update.after.decode()
    return isinstance(payload, Objective) and title(payload) == wanted


def run(args: argparse.Namespace) -> None:
    known = context.load(args.context)
    remembered = memory.Memory(known.path.parent, known.pins.coordinator_id)
    scope = frames.WORK_READ | frames.ARTIFACT_READ
    show = as_json if args.output == "json" else as_text
    for update in Follower(known, remembered, Options(scope=scope, offered=OFFERED, name="follow.py")).updates():
        print(show(update), flush=True)
        if reached(update, args.until):
            return


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cut is made durable on the way out
    try:
        run(args)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # whoever read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (context.BadContext, memory.BadMemory) as e:
        return complain(2, e)
    except (Untrusted, NotAccepted, memory.Quarantined) as e:
        return complain(4, e)
    except (Outgrown, OSError) as e:
        return complain(5, e)
    return 0


def complain(code: int, e: Exception) -> int:
    """Says what went wrong, whoever chose the words."""
    print(f"follow.py: {inert(str(e), 500)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
