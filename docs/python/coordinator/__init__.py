"""A client of the coordinator endpoint in Python, of the standard library alone.

It is the example of docs/implementing.md: small, whole, and held to the golden vectors and to
real daemons by the tests beside it. It speaks over the Unix socket; QUIC needs a library that
exports keying material, which Python does not bring.

    codec       bytes: envelope, TLV, positional values
    records     what frames carry, and the digests over it
    frames      every frame, with its caps and states
    ed25519     signatures, by the strict reading
    handshake   transcripts, proofs and certificates, as pure functions
    context     the pins and the key, from their files
    memory      what must survive a restart of the client
    connection  one authenticated connection
    snapshot    snapshots and replays, verified whole
    stream      subscriptions: order, credit, gaps
    follower    a view that is whole or says that it is not
    commands    commands that run once or not at all
    text        hostile words made inert

Imports go one way, downwards in the order codec, records, frames, handshake, …: nothing that
checks bytes knows of sockets.
"""
