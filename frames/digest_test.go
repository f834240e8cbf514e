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
	for n := range byte(2) {
		r, err := frames.NewRecord(frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID{n + 1}}, 1, &frames.Objective{DocumentSchema: 1, Document: []byte{n}})
		if err != nil {
			t.Fatal(err)
		}
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
	replay, images2 := frames.NewReplayDigest(guard, frames.SubscriptionID{1}, 0, 1, 1), frames.NewReplayDigest(guard, frames.SubscriptionID{1}, 0, 1, 1)
	e := frames.ReplayEvent{Sequence: 1, ID: frames.EventID{1}, Kind: frames.EventSourceGap, Object: frames.ObjectRef{Kind: frames.KindBinding, ID: frames.ObjectID{1}}, Revision: 1, Schema: 1}
	raw, err := codec.EncodeImage(nil, &e)
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
