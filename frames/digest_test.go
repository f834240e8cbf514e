package frames_test

import (
	"testing"

	"coordinator/codec"
	"coordinator/frames"
)

func TestDigestsOfImages(t *testing.T) {
	guard := frames.AuthorityGuard{Epoch: 1, Activation: 2}
	snapshot, images := frames.NewSnapshotDigest(guard, 3, 2), frames.NewSnapshotDigest(guard, 3, 2)
	var raw []byte
	var records []frames.SnapshotRecord
	for n := range byte(2) {
		r, err := frames.NewRecord(frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID{n + 1}}, 1, &frames.Objective{DocumentSchema: 1, Document: []byte{n}})
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
		if err := snapshot.Add(&r); err != nil {
			t.Fatal(err)
		}
		if raw, err = codec.EncodeImage(raw, &r); err != nil {
			t.Fatal(err)
		}
	}
	if images.AddImages(raw); images.Sum() != snapshot.Sum() {
		t.Error("a snapshot's digest over its images is not that over its records")
	}
	page, pages := frames.SnapshotPage{RequestID: 1, SnapshotID: frames.SnapshotID{1}, Cursor: []byte{1}, Records: records, NextCursor: []byte{2}}, frames.NewSnapshotDigest(guard, 3, 2)
	frame, err := frames.Append(nil, &page)
	if err != nil {
		t.Fatal(err)
	}
	if err := pages.AddPage(frame); err != nil || pages.Sum() != snapshot.Sum() {
		t.Errorf("a snapshot's digest over its page is not that over its records: %v", err)
	}
	for name, frame := range map[string][]byte{
		"nothing": nil, "a header": frame[:codec.HeaderSize], "cut short": frame[:len(frame)/2],
		"another type": append(append(append([]byte{}, frame[:4]...), byte(frames.TypeReplayPage)), frame[5:]...),
	} {
		if err := pages.AddPage(frame); err == nil {
			t.Errorf("%s is no page, and was taken", name)
		}
	}
	replay, images2 := frames.NewReplayDigest(guard, frames.SubscriptionID{1}, 0, 1, 1), frames.NewReplayDigest(guard, frames.SubscriptionID{1}, 0, 1, 1)
	e := frames.ReplayEvent{Sequence: 1, ID: frames.EventID{1}, Kind: frames.EventSourceGap, Object: frames.ObjectRef{Kind: frames.KindBinding, ID: frames.ObjectID{1}}, Revision: 1, Schema: 1}
	raw, err = codec.EncodeImage(nil, &e)
	if err != nil {
		t.Fatal(err)
	}
	if err := replay.Add(&e); err != nil {
		t.Fatal(err)
	}
	if images2.AddImages(raw); images2.Sum() != replay.Sum() {
		t.Error("a replay's digest over its images is not that over its events")
	}
}
