package handshake

import (
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var errBadFile = errors.New("bad")

func newJudge(content string) *judge { return &judge{applied: sha256.Sum256([]byte(content))} }

// step is one look: content, or "" for a bad read.
func (j *judge) step(at time.Duration, content string) verdict {
	var err error
	if content == "" {
		err = errBadFile
	}
	v, next := j.look(at, []byte(content), err)
	if next <= 0 || next > pollEvery {
		panic("next look out of range")
	}
	return v
}

func TestJudge(t *testing.T) {
	const ms = time.Millisecond
	type look struct {
		at      time.Duration
		content string
		want    verdict
	}
	var restless []look // other content at each look
	for i := range 7 {
		restless = append(restless, look{time.Duration(i) * 99 * ms, string(rune('b' + i)), keep})
	}
	for _, tt := range []struct {
		name  string
		looks []look
	}{
		{"nothing changed", []look{{0, "a", keep}, {time.Second, "a", keep}}},
		{"a change settles", []look{{0, "b", keep}, {99 * ms, "b", keep}, {100 * ms, "b", apply}, {200 * ms, "b", keep}}},
		{"a change taken back", []look{{0, "b", keep}, {50 * ms, "a", keep}, {60 * ms, "b", keep}, {150 * ms, "b", keep}, {160 * ms, "b", apply}}},
		{"a rewrite in pieces", []look{{0, "", keep}, {50 * ms, "b", keep}, {100 * ms, "", keep}, {120 * ms, "bc", keep}, {220 * ms, "bc", apply}}},
		{"a file that never rests", append(restless, look{settleMax, "z", apply})},
		{"half written for less than a second", []look{{0, "", keep}, {999 * ms, "", keep}, {1000 * ms, "a", keep}, {1500 * ms, "", keep}, {2400 * ms, "", keep}}},
		{"bad for a second", []look{{0, "", keep}, {999 * ms, "", keep}, {1000 * ms, "", empty}, {1100 * ms, "", keep}, {5 * time.Second, "", keep}}},
		{"a change that was bad for a second", []look{{0, "b", keep}, {50 * ms, "", keep}, {1050 * ms, "", empty}, {1100 * ms, "b", keep}, {1200 * ms, "b", apply}}},
		{"the same content after it counted as bad", []look{{0, "", keep}, {1000 * ms, "", empty}, {1100 * ms, "a", keep}, {1200 * ms, "a", apply}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := newJudge("a")
			for _, l := range tt.looks {
				require.Equal(t, l.want, j.step(l.at, l.content), "at %v", l.at)
			}
		})
	}
}

// However a file changes, when looks come as the judge asks for them: what is
// final takes effect within a second, what stays bad within two of its look.
func TestJudgeIsPrompt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := newJudge("a")
		var now time.Duration
		for range rapid.IntRange(0, 30).Draw(t, "looks") {
			j.step(now, rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "content"))
			now += time.Duration(rapid.IntRange(0, 150).Draw(t, "gap")) * time.Millisecond
		}
		final := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "final")
		deadline := now + 1100*time.Millisecond
		for now <= deadline {
			var err error
			if final == "" {
				err = errBadFile
			}
			_, next := j.look(now, []byte(final), err)
			now += next
		}
		if final == "" && !j.emptied {
			t.Fatal("bad for over a second and still in force")
		}
		if final != "" && (j.emptied || j.applied != sha256.Sum256([]byte(final))) {
			t.Fatal("the final content is not in force")
		}
	})
}

// Where nothing watches the file, what is final counts within two seconds all the same,
// wherever between two looks it was written (protocol.md §5.5).
func TestJudgeNeedsNoWatch(t *testing.T) {
	for _, final := range []string{"", "b"} {
		for at := time.Duration(0); at <= pollEvery; at += 10 * time.Millisecond {
			j := newJudge("a")
			content, now := "a", time.Duration(0)
			for {
				var err error
				if now >= at {
					content = final
				}
				if content == "" {
					err = errBadFile
				}
				_, next := j.look(now, []byte(content), err)
				if j.emptied || j.applied == sha256.Sum256([]byte("b")) {
					break
				}
				now += next
			}
			require.Equal(t, final == "", j.emptied)
			require.Less(t, now-at, 2*time.Second, "written at %v", at)
		}
	}
}
