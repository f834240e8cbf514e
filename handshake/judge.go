package handshake

import (
	"crypto/sha256"
	"time"
)

// When what was read from a registry file takes effect.
const (
	// pollEvery is how often the file is read when nothing calls for it sooner.
	pollEvery = 500 * time.Millisecond
	// settleFor is how long new content must stay the same before it counts, so
	// that a file cut at a line's end, half-way through a rewrite in place, is
	// not taken for the removal of the other keys.
	settleFor = 100 * time.Millisecond
	// settleMax bounds that for a file which never rests.
	settleMax = 700 * time.Millisecond
	// badFor is how long a file must stay bad before it empties the registry
	// (protocol.md §5.1).
	badFor = time.Second
	// badRetry is how soon a bad file is read again.
	badRetry = 100 * time.Millisecond
)

// verdict is what one look at the file comes to.
type verdict uint8

const (
	keep  verdict = iota // the generation in force stays
	apply                // the records just read are in force
	empty                // nobody is authorised
)

// judge decides, from one look after another, when content takes effect. It
// does no I/O and reads no clock.
type judge struct {
	applied [32]byte // digest of the content in force
	emptied bool     // nothing is in force, the file was bad for too long

	fresh      [32]byte // digest of content not in force yet
	freshSince time.Duration
	newSince   time.Duration // when content first differed from what is in force
	waiting    bool          // fresh and the two times are set

	badSince time.Duration
	bad      bool
}

// look judges one read at BOOTTIME now: its content, or the error that reading
// or parsing it gave. It also says how long until the next look is due.
func (j *judge) look(now time.Duration, data []byte, err error) (verdict, time.Duration) {
	if err != nil {
		return j.lookBad(now)
	}
	j.bad = false
	sum := sha256.Sum256(data)
	if sum == j.applied && !j.emptied {
		j.waiting = false
		return keep, pollEvery
	}
	if !j.waiting {
		j.waiting, j.newSince, j.fresh, j.freshSince = true, now, sum, now
		return keep, settleFor
	}
	if sum != j.fresh {
		j.fresh, j.freshSince = sum, now
	}
	if now-j.freshSince < settleFor && now-j.newSince < settleMax {
		return keep, settleFor - (now - j.freshSince)
	}
	j.waiting, j.emptied, j.applied = false, false, sum
	return apply, pollEvery
}

func (j *judge) lookBad(now time.Duration) (verdict, time.Duration) {
	if j.emptied {
		return keep, pollEvery
	}
	if !j.bad {
		j.bad, j.badSince = true, now
	}
	if now-j.badSince < badFor {
		return keep, min(badRetry, badFor-(now-j.badSince))
	}
	j.emptied, j.waiting = true, false
	return empty, pollEvery
}
