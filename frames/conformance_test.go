package frames_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"runtime"
	"strings"
	"testing"

	"coordinator/codec"
	"coordinator/frames"

	"github.com/stretchr/testify/require"
)

// The numbers of the endpoint's frames and who may send them (protocol.md §7). Every
// other number belongs to somebody else: a terminal connection or an internal link.
var namespace = map[frames.Type]struct{ name, from string }{
	0x01: {"COORD_HELLO", "c"}, 0x04: {"WORKLOAD_RESPONSE", "c"}, 0x10: {"COORD_COMMAND", "c"}, 0x11: {"GET_OPERATION_RESULT", "c"},
	0x20: {"OPEN_SNAPSHOT", "c"}, 0x21: {"SNAPSHOT_NEXT", "c"}, 0x22: {"SNAPSHOT_APPLIED", "c"}, 0x23: {"SUBSCRIBE", "c"},
	0x24: {"CREDIT", "c"}, 0x25: {"OPEN_REPLAY", "c"}, 0x26: {"REPLAY_NEXT", "c"}, 0x27: {"REPLAY_APPLIED", "c"},
	0x7f: {"COORD_PING", "cs"}, 0xff: {"COORD_PONG", "cs"}, 0xc0: {"COORD_ERROR", "cs"},
	0x80: {"COORD_HELLO_OK", "s"}, 0x82: {"ACK", "s"}, 0x83: {"COORD_AUTHORITY_RENEWED", "s"}, 0x84: {"WORKLOAD_CHALLENGE", "s"},
	0x90: {"COORD_COMMAND_RESULT", "s"}, 0x91: {"OPERATION_RESULT", "s"}, 0xa0: {"SNAPSHOT_BEGIN", "s"}, 0xa1: {"SNAPSHOT_PAGE", "s"},
	0xa2: {"SNAPSHOT_END", "s"}, 0xa3: {"SUBSCRIBED", "s"}, 0xa4: {"REPLAY_BEGIN", "s"}, 0xa5: {"REPLAY_PAGE", "s"},
	0xa6: {"REPLAY_END", "s"}, 0xb0: {"COORD_EVENT", "s"}, 0xb1: {"GAP", "s"},
}

func TestC01_NamespaceRefusesForeignFrames(t *testing.T) {
	require.Len(t, frames.Types(), len(namespace))
	body, err := codec.Encode(nil, &frames.Ping{Nonce: 1})
	require.NoError(t, err)
	for n := range 256 {
		typ := frames.Type(n)
		want, ours := namespace[typ]
		require.Equal(t, ours, typ.Known(), "%#02x", n)
		require.Equal(t, strings.Contains(want.from, "c"), typ.FromClient(), "%#02x from a client", n)
		require.Equal(t, strings.Contains(want.from, "s"), typ.FromServer(), "%#02x from a server", n)
		if ours {
			require.Equal(t, want.name, typ.String())
			continue
		}
		// Refused by its number alone, whatever its body would be.
		for _, b := range [][]byte{nil, body, {0xff, 0xff}} {
			f, err := frames.Decode(typ, b)
			require.Nil(t, f)
			require.Equal(t, frames.CodeProtocolError, frames.CodeOf(err), "%#02x", n)
		}
	}
}

// The links reuse some numbers. What they mean there is malformed here.
func TestC01_LinkFramesOnSharedNumbersAreMalformed(t *testing.T) {
	id, hash := bytes.Repeat([]byte{1}, 16), bytes.Repeat([]byte{2}, 32)
	u32, u64 := []byte{0, 0, 0, 1}, binary.BigEndian.AppendUint64(nil, 7)
	guard, err := codec.EncodeImage(nil, &frames.AuthorityGuard{Epoch: 1})
	require.NoError(t, err)
	offer, err := codec.EncodeImage(nil, &frames.WorkloadOffer{Profile: frames.Profile, ClientNonce: [32]byte(hash)})
	require.NoError(t, err)
	for _, tt := range []struct {
		name string
		typ  frames.Type
		body []byte
	}{
		{"LINK_HELLO", 0x01, tlv(t, 1, u16(0), 2, u16(1), 3, u16(0), 4, offer)},
		{"ACTIVATE", 0x10, tlv(t, 1, u32, 2, id, 3, u64, 4, id, 5, u16(15))},
		{"RENEW", 0x11, tlv(t, 1, u32, 2, id, 3, u64, 4, u64, 5, hash, 6, id, 7, u16(15))},
		{"DISPATCH_EFFECT", 0x10, tlv(t, 1, u32, 2, guard, 3, id, 4, hash, 5, []byte{1})},
		{"OPEN_FACTS", 0x20, tlv(t, 1, u32, 2, guard, 3, id, 4, u64, 5, u32)},
		{"FACT_ACK", 0x21, tlv(t, 1, id, 2, u64, 3, u32)},
		{"CERTIFICATE", 0x90, tlv(t, 1, u32, 2, make([]byte, 209))},
		{"STATUS", 0x91, tlv(t, 1, u32, 2, u64, 3, u64)},
		{"OUTPUT_CHUNK", 0xa0, tlv(t, 1, u32, 2, u64, 3, []byte("data"), 4, []byte{0})},
		{"FACTS_END", 0xb1, tlv(t, 1, id, 2, u64)},
	} {
		_, err := frames.Decode(tt.typ, tt.body)
		require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err), "%s: %v", tt.name, err)
	}
}

// Whatever number a peer writes over any part of a frame, decoding takes no memory for it.
func TestC02_CapsPrecedeAllocation(t *testing.T) {
	claims := [][]byte{{0x80, 0, 0, 0}, {0x7f, 0xff, 0xff, 0xff}, {0xff, 0xff, 0xff, 0xff}, {0xff, 0xff}, {0x03, 0xff},
		{0x80, 0, 0, 0, 0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		// As lengths of TLV fields: 2^31, 2^32-1, 2^63 and 2^64-1.
		codec.AppendVarint(nil, 1<<31), codec.AppendVarint(nil, math.MaxUint32), codec.AppendVarint(nil, 1<<63), codec.AppendVarint(nil, math.MaxUint64)}
	try := func(name string, raw []byte, decode func([]byte) error) {
		bad := make([]byte, len(raw))
		decodes := 0
		taken := allocated(func() {
			for at := range raw {
				for _, claim := range claims {
					copy(bad, raw)
					copy(bad[at:], claim)
					_ = decode(bad)
					decodes++
				}
			}
		})
		if limit := uint64(decodes) * uint64(16<<10+8*len(raw)); taken > limit {
			t.Errorf("%s: %d decodes took %d bytes, at most %d are fine", name, decodes, taken, limit)
		}
	}
	for _, f := range sampleFrames() {
		frame, err := frames.Append(nil, f)
		require.NoError(t, err)
		try(f.Type().String(), frame[codec.HeaderSize:], func(b []byte) error {
			_, err := frames.Decode(f.Type(), b)
			return err
		})
	}
	for _, m := range sampleMessages() {
		body, err := codec.Encode(nil, m)
		require.NoError(t, err)
		fresh := fresh(m)
		try("message", body, func(b []byte) error { return codec.Decode(fresh, b) })
	}
	for _, v := range sampleValues() {
		image, err := codec.EncodeImage(nil, v)
		require.NoError(t, err)
		fresh := fresh(v)
		try("value", image, func(b []byte) error { return codec.DecodeImage(fresh, b) })
	}
}

// allocated is how many bytes f takes from the heap.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A refusal costs a handful of small allocations (the frame, its fields, the error), however
// large the claim.
func TestC02_RefusalsAllocateLittle(t *testing.T) {
	for name, body := range map[string][]byte{
		"a payload of 2 GiB":         append([]byte{5, 4}, codec.AppendVarint(nil, 1<<31)...),
		"65535 preconditions":        tlv(t, 6, []byte{0xff, 0xff}),
		"a name of 32 GiB":           append([]byte{4, 4}, 0xff, 0xff, 0xff, 0xff, 0x7f),
		"a page of 1024 and no more": tlv(t, 1, []byte{0, 0, 0, 1}, 2, bytes.Repeat([]byte{1}, 16), 3, []byte{}, 4, []byte{0, 0, 0, 0}, 5, []byte{4, 0}),
	} {
		for _, typ := range []frames.Type{frames.TypeCoordCommand, frames.TypeCoordHello, frames.TypeSnapshotPage, frames.TypeReplayPage} {
			n := testing.AllocsPerRun(20, func() {
				if _, err := frames.Decode(typ, body); err == nil {
					t.Errorf("%s is accepted as %v", name, typ)
				}
			})
			require.LessOrEqual(t, n, 12.0, "%s as %v", name, typ)
		}
	}
}

// digestOf fails the test when the command has none.
func digestOf(t *testing.T, m *frames.CoordCommand) [32]byte {
	t.Helper()
	d, err := frames.OperationDigest(m)
	require.NoError(t, err)
	return d
}

func digestSample(t *testing.T) *frames.CoordCommand {
	t.Helper()
	return &frames.CoordCommand{
		RequestID: 1, Guard: sampleGuard(), OperationID: fill16[frames.OperationID](1), Kind: 1,
		Payload: tlv(t, 1, []byte("a"), 2, []byte("b"), 90, []byte("unknown")),
		Preconditions: []frames.Precondition{
			{Object: frames.ObjectRef{Kind: 1, ID: fill16[frames.ObjectID](2)}, Revision: 1},
			{Object: frames.ObjectRef{Kind: 2, ID: fill16[frames.ObjectID](1)}, Revision: 1},
		},
		Extensions: []codec.Field{{ID: 7, Value: []byte("e")}},
	}
}

func TestC07_OperationDigest(t *testing.T) {
	base := digestOf(t, digestSample(t))
	for _, tt := range []struct {
		name   string
		change func(*frames.CoordCommand)
		same   bool
	}{
		{"another request id", func(m *frames.CoordCommand) { m.RequestID = 2 }, true},
		{"another epoch and token", func(m *frames.CoordCommand) { m.Guard.Epoch++; m.Guard.TokenSHA256[0]++ }, true},
		{"another operation id", func(m *frames.CoordCommand) { m.OperationID[0]++ }, true},
		{"preconditions in another order", func(m *frames.CoordCommand) {
			m.Preconditions[0], m.Preconditions[1] = m.Preconditions[1], m.Preconditions[0]
		}, true},
		{"payload in another order", func(m *frames.CoordCommand) {
			m.Payload = tlv(t, 90, []byte("unknown"), 2, []byte("b"), 1, []byte("a"))
		}, true},
		{"another kind", func(m *frames.CoordCommand) { m.Kind = 2 }, false},
		{"another payload", func(m *frames.CoordCommand) { m.Payload = tlv(t, 1, []byte("b")) }, false},
		{"without the payload's unknown field", func(m *frames.CoordCommand) { m.Payload = tlv(t, 1, []byte("a"), 2, []byte("b")) }, false},
		{"another revision", func(m *frames.CoordCommand) { m.Preconditions[0].Revision++ }, false},
		{"one precondition less", func(m *frames.CoordCommand) { m.Preconditions = m.Preconditions[:1] }, false},
		{"no extension", func(m *frames.CoordCommand) { m.Extensions = nil }, false},
		{"another extension", func(m *frames.CoordCommand) { m.Extensions[0].ID = 8 }, false},
		{"an extension more, of no bytes", func(m *frames.CoordCommand) { m.Extensions = append(m.Extensions, codec.Field{ID: 9}) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := digestSample(t)
			tt.change(m)
			require.Equal(t, tt.same, digestOf(t, m) == base)
		})
	}
}

// Absent and empty preconditions are one thing, and a digest leaves its command alone.
func TestC07_OperationDigestOfNoPreconditions(t *testing.T) {
	m := digestSample(t)
	m.Preconditions = nil
	absent := digestOf(t, m)
	m.Preconditions = []frames.Precondition{}
	require.Equal(t, absent, digestOf(t, m))

	body, err := codec.Encode(nil, m)
	require.NoError(t, err)
	withEmpty := append(bytes.Clone(body), tlv(t, 6, []byte{0, 0})...)
	again := new(frames.CoordCommand)
	require.NoError(t, codec.Decode(again, withEmpty))
	require.Nil(t, again.Preconditions)
	require.Equal(t, absent, digestOf(t, again))
	out, err := codec.Encode(nil, again)
	require.NoError(t, err)
	require.Equal(t, body, out, "an empty list is left out")

	m = digestSample(t)
	m.Preconditions[0], m.Preconditions[1] = m.Preconditions[1], m.Preconditions[0]
	digestOf(t, m)
	_, err = codec.Encode(nil, m)
	require.NoError(t, err)
	require.Equal(t, frames.KindRun, m.Preconditions[0].Object.Kind, "the caller's order stays")

	m.Payload = []byte{1}
	_, err = frames.OperationDigest(m)
	require.Error(t, err, "a payload that is no TLV has no digest")
}

// A repeated object is malformed whatever its revisions and wherever it stands.
func TestC07_DuplicatePreconditions(t *testing.T) {
	m := digestSample(t)
	twin := m.Preconditions[0]
	twin.Revision = 99
	m.Preconditions = append(m.Preconditions, twin)
	_, err := codec.Encode(nil, m)
	require.ErrorIs(t, err, codec.ErrDuplicate)

	m.Preconditions = nil
	body, err := codec.Encode(nil, m)
	require.NoError(t, err)
	var list []byte
	for _, p := range append(digestSample(t).Preconditions, twin) {
		list, err = codec.EncodeImage(list, &p)
		require.NoError(t, err)
	}
	body = append(body, tlv(t, 6, append([]byte{0, 3}, list...))...)
	require.ErrorIs(t, codec.Decode(new(frames.CoordCommand), body), codec.ErrDuplicate)
}
