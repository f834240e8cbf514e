package frames_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"coordinator/codec"
	"coordinator/frames"

	"github.com/stretchr/testify/require"
)

func u16(v uint16) []byte { return []byte{byte(v >> 8), byte(v)} }

// tlv writes fields in the order given; odd arguments are ids, even ones values.
func tlv(t *testing.T, pairs ...any) []byte {
	t.Helper()
	var fields []codec.Field
	for k := 0; k < len(pairs); k += 2 {
		fields = append(fields, codec.Field{ID: uint32(pairs[k].(int)), Value: pairs[k+1].([]byte)})
	}
	return codec.AppendFields(nil, fields)
}

func TestC03_HelloVersion(t *testing.T) {
	for _, tt := range []struct {
		name string
		body []byte
		want frames.Version
		ok   bool
	}{
		{"as it should be", tlv(t, 1, u16(0), 2, u16(1), 3, u16(2)), frames.Version{Minor: 1, Patch: 2}, true},
		{"other major", tlv(t, 1, u16(9), 2, u16(1), 3, u16(0)), frames.Version{Major: 9, Minor: 1}, true},
		{"other minor, junk behind", append(tlv(t, 1, u16(0), 2, u16(2)), 0xff, 0xff, 0xff), frames.Version{Minor: 2}, true},
		{"descending, behind others", tlv(t, 9, []byte("x"), 3, u16(0), 2, u16(7), 1, u16(0)), frames.Version{Minor: 7}, true},
		{"without a patch", tlv(t, 1, u16(0), 2, u16(2)), frames.Version{Minor: 2}, true},
		{"a patch of four bytes", tlv(t, 1, u16(1), 2, u16(2), 3, make([]byte, 4)), frames.Version{Major: 1, Minor: 2}, true},
		{"no body", nil, frames.Version{}, false},
		{"no minor", tlv(t, 1, u16(9), 3, u16(0)), frames.Version{Major: 9}, false},
		{"minor of one byte", tlv(t, 1, u16(9), 2, []byte{1}), frames.Version{Major: 9}, false},
		{"junk before the minor", append(tlv(t, 1, u16(0)), 2, 0), frames.Version{}, false},
		{"major twice", tlv(t, 1, u16(0), 1, u16(9), 2, u16(9)), frames.Version{}, false},
		{"major twice, behind the version", tlv(t, 1, u16(0), 2, u16(9), 1, u16(0)), frames.Version{Minor: 9}, true},
		{"behind 128 fields", append(manyFields(t, 128), tlv(t, 1, u16(9), 2, u16(9))...), frames.Version{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, ok := frames.HelloVersion(tt.body)
			require.Equal(t, tt.ok, ok)
			require.Equal(t, tt.want, v)
		})
	}
	require.True(t, frames.Version{Minor: 1, Patch: 9}.Compatible(frames.CurrentVersion()), "the patch may differ")
	require.False(t, frames.Version{Minor: 2}.Compatible(frames.CurrentVersion()))
	require.False(t, frames.Version{Major: 1, Minor: 1}.Compatible(frames.CurrentVersion()))
}

func manyFields(t *testing.T, n int) []byte {
	t.Helper()
	var out []byte
	for k := range n {
		out = append(out, tlv(t, 100+k, []byte{})...)
	}
	return out
}

// goodHello is a hello that negotiates.
func goodHello() *frames.CoordHello {
	return sampleFrames()[0].(*frames.CoordHello)
}

const serverCaps = frames.CapAdministration | frames.CapEventReplay

func TestNegotiate(t *testing.T) {
	m := goodHello()
	m.Offered, m.Required = serverCaps|1<<62|frames.CapSignals, frames.CapEventReplay
	m.Limits.PageRecords, m.Limits.CreditCount = 3, 4000
	limits, caps, err := frames.Negotiate(m, frames.ReferenceLimits(), serverCaps)
	require.NoError(t, err)
	require.Equal(t, serverCaps, caps, "unknown bits are ignored")
	want := frames.ReferenceLimits()
	want.PageRecords = 3
	require.Equal(t, want, limits, "the lesser of each")
}

// The order of protocol.md §5.5 [D-38]: of two faults the earlier is told.
func TestNegotiateOrder(t *testing.T) {
	faults := []struct {
		name   string
		change func(*frames.CoordHello)
		code   frames.Code
	}{
		{"limits that do not fit", func(m *frames.CoordHello) { m.Limits.FrameBytes = 2048 }, frames.CodeMalformedMessage},
		{"another profile", func(m *frames.CoordHello) { m.Offer.Profile = "phux-workload/v2" }, frames.CodeAuthenticationFailed},
		{"a capability that nobody has", func(m *frames.CoordHello) { m.Offered, m.Required = 1<<60, 1<<60 }, frames.CodeCapabilityRequired},
	}
	for first := range faults {
		for second := first; second < len(faults); second++ {
			m := goodHello()
			faults[second].change(m)
			faults[first].change(m)
			_, _, err := frames.Negotiate(m, frames.ReferenceLimits(), serverCaps)
			require.Equal(t, faults[first].code, frames.CodeOf(err), "%s and %s", faults[first].name, faults[second].name)
		}
	}
	m := goodHello()
	m.HasOffer = false
	_, _, err := frames.Negotiate(m, frames.ReferenceLimits(), serverCaps)
	require.Equal(t, frames.CodeAuthenticationFailed, frames.CodeOf(err), "no offer is a failed authentication")
	m = goodHello()
	m.Offered, m.Required = frames.CapEventReplay, frames.CapAdministration
	_, _, err = frames.Negotiate(m, frames.ReferenceLimits(), serverCaps)
	require.Equal(t, frames.CodeCapabilityRequired, frames.CodeOf(err), "required must be within the own offer")
}

// A profile is judged and not parsed: any text that a hello frame can hold is well-formed.
func TestLongProfileIsWellFormed(t *testing.T) {
	m := goodHello()
	m.Offer.Profile = strings.Repeat("p", 4000)
	frame, err := frames.Append(nil, m)
	require.NoError(t, err)
	again, err := frames.Decode(m.Type(), frame[codec.HeaderSize:])
	require.NoError(t, err)
	_, _, err = frames.Negotiate(again.(*frames.CoordHello), frames.ReferenceLimits(), serverCaps)
	require.Equal(t, frames.CodeAuthenticationFailed, frames.CodeOf(err))
}

func TestHelloLimits(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*frames.Limits)
		want   error
	}{
		{"frame zero", func(l *frames.Limits) { l.FrameBytes = 0 }, codec.ErrZero},
		{"frame above 1 MiB", func(l *frames.Limits) { l.FrameBytes = 1<<20 + 1 }, codec.ErrOverCap},
		{"page zero", func(l *frames.Limits) { l.PageBytes = 0 }, codec.ErrZero},
		{"page above 512 KiB", func(l *frames.Limits) { l.PageBytes = 512<<10 + 1 }, codec.ErrOverCap},
		{"records zero", func(l *frames.Limits) { l.PageRecords = 0 }, codec.ErrZero},
		{"records above 1024", func(l *frames.Limits) { l.PageRecords = 1025 }, codec.ErrOverCap},
		{"payload zero", func(l *frames.Limits) { l.TypedPayload = 0 }, codec.ErrZero},
		{"payload above 256 KiB", func(l *frames.Limits) { l.TypedPayload = 256<<10 + 1 }, codec.ErrOverCap},
		{"count zero", func(l *frames.Limits) { l.CreditCount = 0 }, codec.ErrZero},
		{"count above 4096", func(l *frames.Limits) { l.CreditCount = 4097 }, codec.ErrOverCap},
		{"bytes zero", func(l *frames.Limits) { l.CreditBytes = 0 }, codec.ErrZero},
		{"bytes above 8 MiB", func(l *frames.Limits) { l.CreditBytes = 8<<20 + 1 }, codec.ErrOverCap},
		{"all at their caps", func(l *frames.Limits) {
			*l = frames.Limits{FrameBytes: 1 << 20, PageBytes: 512 << 10, PageRecords: 1024, TypedPayload: 256 << 10, CreditCount: 4096, CreditBytes: 8 << 20}
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := goodHello()
			tt.change(&m.Limits)
			_, err := frames.Append(nil, m)
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, tt.want)
		})
	}
}

func TestSelect(t *testing.T) {
	base := frames.Limits{FrameBytes: 4096, PageBytes: 3584, PageRecords: 1, TypedPayload: 3584, CreditCount: 1, CreditBytes: 3584 + 112}
	for _, tt := range []struct {
		name   string
		change func(*frames.Limits)
		ok     bool
	}{
		{"everything just fits", func(*frames.Limits) {}, true},
		{"page one above the frame less 512", func(l *frames.Limits) { l.PageBytes++ }, false},
		{"payload one above the frame less 512", func(l *frames.Limits) { l.TypedPayload++; l.CreditBytes++ }, false},
		{"credit one below an event", func(l *frames.Limits) { l.CreditBytes-- }, false},
		{"frame of 2048", func(l *frames.Limits) { *l = frames.Limits{2048, 1536, 1, 1536, 1, 1648} }, true},
		{"frame of 2047", func(l *frames.Limits) { *l = frames.Limits{2047, 1000, 1, 1000, 1, 2000} }, false},
		{"frame of 1", func(l *frames.Limits) { l.FrameBytes = 1 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := base
			tt.change(&l)
			for _, pair := range [][2]frames.Limits{{l, frames.ReferenceLimits()}, {frames.ReferenceLimits(), l}} {
				got, err := pair[0].Select(pair[1])
				if !tt.ok {
					require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(err))
					require.Zero(t, got)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, l, got)
			}
		})
	}
}

// The caps of protocol.md §2 [D-28].
func TestC02_FrameCaps(t *testing.T) {
	l := frames.ReferenceLimits()
	special := map[frames.Type]uint32{
		frames.TypeCoordHello: 16384, frames.TypeCoordHelloOK: 16384, frames.TypeWorkloadChallenge: 16384,
		frames.TypeWorkloadResponse: 16384, frames.TypeSnapshotPage: 262144 + 512, frames.TypeReplayPage: 262144 + 512,
		frames.TypeCoordEvent: 131072 + 512, frames.TypeCoordCommand: 131072 + 4096,
	}
	for _, typ := range frames.Types() {
		want, ok := special[typ]
		if !ok {
			want = 524288
		}
		require.Equal(t, want, frames.FrameCap(typ, &l), "%v", typ)
		require.EqualValues(t, 16384, frames.FrameCap(typ, nil), "%v before COORD_HELLO_OK", typ)
	}
	narrow := frames.Limits{FrameBytes: 4096, PageBytes: 3584, TypedPayload: 3584}
	require.EqualValues(t, 4096, frames.FrameCap(frames.TypeCoordCommand, &narrow), "the lesser of frame and payload + 4096")
}

// What fits into the selected limits fits into the caps: pages with cursors of 200 bytes,
// and events.
func TestC02_CapsHoldWhatTheyMust(t *testing.T) {
	l := frames.Limits{FrameBytes: 4096, PageBytes: 3584, PageRecords: 8, TypedPayload: 3584, CreditCount: 1, CreditBytes: 3696}
	record := sampleRecord(1)
	record.Payload = make([]byte, l.PageBytes-2-32)
	event := sampleReplayEvent(1)
	event.Payload = make([]byte, l.PageBytes-2-58)
	cursor := make([]byte, 200)
	for _, f := range []frames.Frame{
		&frames.SnapshotPage{RequestID: 1, SnapshotID: fill16[frames.SnapshotID](1), Cursor: cursor, NextCursor: cursor, Records: []frames.SnapshotRecord{record}},
		&frames.ReplayPage{RequestID: 1, ReplayID: fill16[frames.ReplayID](1), Cursor: cursor, NextCursor: cursor, Events: []frames.ReplayEvent{event}},
		&frames.CoordEvent{
			SubscriptionID: fill16[frames.SubscriptionID](1), Delivery: 1, Sequence: 1, EventID: fill16[frames.EventID](1), Kind: 1,
			Object: frames.ObjectRef{Kind: 1, ID: fill16[frames.ObjectID](1)}, Revision: 1, Payload: make([]byte, l.TypedPayload),
		},
	} {
		frame, err := frames.Append(nil, f)
		require.NoError(t, err)
		require.LessOrEqual(t, len(frame)-4, int(frames.FrameCap(f.Type(), &l)), "%v", f.Type())
	}
}

// EventBytes is what COORD_EVENT really takes on the wire, its length word included.
func TestC12_EventBytes(t *testing.T) {
	event := sampleFrames()
	for _, n := range []int{0, 1, 127, 128, 129, 16383, 16384, 16385, 131072, frames.MaxTypedPayload} {
		for _, f := range event {
			if m, ok := f.(*frames.CoordEvent); ok {
				m.Payload = make([]byte, n)
				frame, err := frames.Append(nil, m)
				require.NoError(t, err)
				require.Equal(t, len(frame), frames.EventBytes(n), "payload of %d bytes", n)
				require.LessOrEqual(t, frames.EventBytes(n), n+112)
			}
		}
	}
	require.Equal(t, 131072+112, frames.EventBytes(131072), "the largest event fills the margin of D-37")
}

// A handshake frame has its cap in every state, so nobody can even encode a larger one.
func TestHandshakeFramesStayUnder16KiB(t *testing.T) {
	m := sampleFrames()
	for _, f := range m {
		response, ok := f.(*frames.WorkloadResponse)
		if !ok {
			continue
		}
		frame, err := frames.Append(nil, response)
		require.NoError(t, err)
		room := frames.MaxHandshakeBytes - (len(frame) - 4)
		response.ScopeBytes = make([]byte, 8+room-1) // its length varint grows by one
		frame, err = frames.Append(nil, response)
		require.NoError(t, err)
		require.Len(t, frame, 4+frames.MaxHandshakeBytes)
		_, err = frames.Decode(f.Type(), frame[codec.HeaderSize:])
		require.NoError(t, err)

		response.ScopeBytes = append(response.ScopeBytes, 0)
		dst := []byte("dst")
		out, err := frames.Append(dst, response)
		require.ErrorIs(t, err, codec.ErrFrameTooLarge)
		require.Equal(t, dst, out)
		_, err = frames.Decode(f.Type(), make([]byte, frames.MaxHandshakeBytes))
		require.Equal(t, frames.CodeFrameTooLarge, frames.CodeOf(err))
	}
}

func TestErrorCodes(t *testing.T) {
	fatal := map[frames.Code]bool{1: true, 2: true, 3: true, 4: true, 5: true, 8: true, 9: true}
	names := []string{"", "VERSION_INCOMPATIBLE", "FRAME_TOO_LARGE", "MALFORMED_MESSAGE", "PROTOCOL_ERROR",
		"AUTHENTICATION_FAILED", "CAPABILITY_REQUIRED", "SCOPE_DENIED", "STALE_AUTHORITY", "AUTHORITY_FENCED",
		"OPERATION_CONFLICT", "REVISION_CONFLICT", "CURSOR_INVALID", "RESOURCE_EXHAUSTED", "NOT_FOUND"}
	for c := frames.Code(1); c <= 14; c++ {
		require.Equal(t, names[c], c.String())
		require.Equal(t, fatal[c], c.Fatal(), "%v", c)
		require.True(t, c.Known())
	}
	require.Equal(t, "INTERNAL", frames.Code(255).String())
	require.False(t, frames.Code(0).Known())
	require.False(t, frames.Code(15).Known())

	require.Equal(t, frames.CodeNotFound, frames.CodeOf(errors.Join(errors.New("x"), frames.Refuse(frames.CodeNotFound, "gone"))))
	require.Equal(t, frames.CodeFrameTooLarge, frames.CodeOf(codec.ErrFrameTooLarge))
	require.Equal(t, frames.CodeMalformedMessage, frames.CodeOf(&codec.Error{Cause: codec.ErrUTF8}))
	require.Equal(t, frames.CodeInternal, frames.CodeOf(errors.New("disk")))
}

func TestIDs(t *testing.T) {
	zeros := bytes.Repeat([]byte{0}, 16)
	one := bytes.Repeat([]byte{1}, 16)
	id, err := frames.NewID[frames.OperationID](bytes.NewReader(append(zeros, one...)))
	require.NoError(t, err)
	require.Equal(t, frames.OperationID(one), id, "an id of zeros is drawn again")
	_, err = frames.NewID[frames.OperationID](bytes.NewReader(one[:15]))
	require.Error(t, err)

	parsed, err := frames.ParseID[frames.OperationID](id.String())
	require.NoError(t, err)
	require.Equal(t, id, parsed)
	for name, text := range map[string]string{
		"empty": "", "31 digits": id.String()[1:], "33 digits": id.String() + "0", "zeros": strings.Repeat("0", 32),
		"not hex": "g" + id.String()[1:], "a sign": "+" + id.String()[1:],
	} {
		_, err := frames.ParseID[frames.OperationID](text)
		require.Error(t, err, name)
	}
}
