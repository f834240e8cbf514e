package frames_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/codec"
	"coordinator/frames"
)

// TestImagesAreWhatPagesAre decodes pages, whole and damaged, both ways: what one refuses
// the other refuses for the same reason, and both encode to the same bytes.
func TestImagesAreWhatPagesAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f frames.Frame
		var images []byte
		snapshot := rapid.Bool().Draw(t, "snapshot")
		var next []byte
		if rapid.Bool().Draw(t, "next") {
			next = []byte("next")
		}
		n := rapid.IntRange(0, 5).Draw(t, "count")
		if snapshot {
			p := &frames.SnapshotPage{RequestID: 1, SnapshotID: frames.SnapshotID{1}, Cursor: []byte("c"), Index: 3, NextCursor: next}
			for i := range n {
				r := frames.SnapshotRecord{Kind: frames.KindObjective, ID: frames.ObjectID{byte(i + 1)}, Revision: 1, Schema: 1, Payload: make([]byte, i)}
				p.Records = append(p.Records, r)
			}
			if n > 1 && rapid.IntRange(0, 3).Draw(t, "disorder") == 0 {
				p.Records[n-1].ID = p.Records[0].ID
			}
			for i := range p.Records {
				images, _ = codec.EncodeImage(images, &p.Records[i])
			}
			f = p
		} else {
			p := &frames.ReplayPage{RequestID: 1, ReplayID: frames.ReplayID{1}, Cursor: []byte("c"), Index: 3, NextCursor: next}
			for i := range n {
				e := frames.ReplayEvent{Sequence: frames.EventSequence(i + 1), ID: frames.EventID{1}, Kind: frames.EventSourceGap, Object: frames.ObjectRef{Kind: frames.KindBinding, ID: frames.ObjectID{1}}, Revision: 1, Schema: 1, Payload: make([]byte, i)}
				p.Events = append(p.Events, e)
			}
			if n > 1 && rapid.IntRange(0, 3).Draw(t, "disorder") == 0 {
				p.Events[n-1].Sequence = 1
			}
			for i := range p.Events {
				images, _ = codec.EncodeImage(images, &p.Events[i])
			}
			f = p
		}
		raw, err := frames.Append(nil, f)
		if _, again := frames.Append(nil, asImages(f, n, images)); err != nil || again != nil {
			require.Equal(t, err, again, "one encoder refuses what the other writes")
			return
		}
		body := raw[codec.HeaderSize:]
		for range rapid.IntRange(0, 3).Draw(t, "damage") {
			at := rapid.IntRange(0, len(body)-1).Draw(t, "at")
			body[at] = rapid.SampledFrom([]byte{0, 1, 2, 4, 0x7f, 0x80, 0xff, body[at] + 1}).Draw(t, "byte")
		}
		body = body[:len(body)-rapid.SampledFrom([]int{0, 0, 0, 1, 7}).Draw(t, "cut")]
		whole, err := frames.Decode(f.Type(), body)
		kept, keptErr := frames.DecodeImages(f.Type(), body)
		if err != nil || keptErr != nil {
			require.Equal(t, err, keptErr)
			return
		}
		want, err := frames.Append(nil, whole)
		require.NoError(t, err)
		got, err := frames.Append(nil, kept)
		require.NoError(t, err)
		require.Equal(t, want, got)
		switch k := kept.(type) {
		case *frames.SnapshotImages:
			if p := whole.(*frames.SnapshotPage).Records; len(p) > 0 {
				require.Equal(t, []frames.ObjectRef{p[0].Ref(), p[len(p)-1].Ref()}, []frames.ObjectRef{k.First, k.Last})
			}
		case *frames.ReplayImages:
			if p := whole.(*frames.ReplayPage).Events; len(p) > 0 {
				require.Equal(t, []frames.EventSequence{p[0].Sequence, p[len(p)-1].Sequence}, []frames.EventSequence{k.First, k.Last})
			}
		}
	})
}

func asImages(f frames.Frame, n int, images []byte) frames.Frame {
	switch p := f.(type) {
	case *frames.SnapshotPage:
		return &frames.SnapshotImages{RequestID: p.RequestID, SnapshotID: p.SnapshotID, Cursor: p.Cursor, Index: p.Index, Count: n, Images: images, NextCursor: p.NextCursor}
	case *frames.ReplayPage:
		return &frames.ReplayImages{RequestID: p.RequestID, ReplayID: p.ReplayID, Cursor: p.Cursor, Index: p.Index, Count: n, Images: images, NextCursor: p.NextCursor}
	}
	return nil
}
