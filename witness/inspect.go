package witness

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
)

// inspectTries bounds how often a file that a running witness writes is read again.
const inspectTries = 5

// A Summary is what the witness's file says about one coordinator. It holds no secret.
type Summary struct {
	Coordinator frames.CoordinatorID
	LastEpoch   frames.AuthorityEpoch
	Activation  frames.ActivationSequence
	Incarnation frames.IncarnationID
	Holder      frames.KeyID
	Spent       bool
	// Remaining is what is left of the lease. When OtherBoot is set the machine has rebooted
	// since, and it counts from the witness's next start.
	Remaining time.Duration
	OtherBoot bool
	// IssuedAt and ExpiresAt are the last certificate's, Unix seconds.
	IssuedAt, ExpiresAt uint64
}

// Inspect reads the file of the witness in dir, running or not, checks it completely and
// changes nothing. The errors are those of [Open].
func Inspect(dir, bootID string, now clock.Reading) (frames.WitnessID, []Summary, error) {
	head, leases, err := readLedger(filepath.Join(dir, stateFile), schemas.Newest())
	for range inspectTries {
		// A write that overlapped the read looks like damage; only what stays so is.
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) && !errors.Is(err, durable.ErrUnstable) {
			break
		}
		head, leases, err = readLedger(filepath.Join(dir, stateFile), schemas.Newest())
	}
	if err != nil {
		return frames.WitnessID{}, nil, err
	}
	out := make([]Summary, 0, len(leases))
	for id, l := range leases {
		s := Summary{
			Coordinator: id, LastEpoch: l.Epoch, Activation: l.Activation, Incarnation: l.Incarnation,
			Holder: l.Holder, Spent: l.Spent, IssuedAt: l.IssuedAt, ExpiresAt: l.ExpiresAt,
			OtherBoot: l.BootID != bootID,
		}
		switch {
		case l.Spent:
		case s.OtherBoot:
			s.Remaining = l.Length
		case l.live(now.Boot):
			s.Remaining = l.Expires - now.Boot
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Summary) int { return bytes.Compare(a.Coordinator[:], b.Coordinator[:]) })
	return head.Witness, out, nil
}
