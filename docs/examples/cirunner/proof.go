package cirunner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"coordinator/client"
	"coordinator/frames"
)

// A Proof is what the evidence of a stage has shown.
type Proof struct {
	// Facts is how many facts the owner stated about the process, from its start to its end.
	Facts uint64
	// Seal is the hash over all of them, as recomputed and as the coordinator keeps it.
	Seal [32]byte
	// OutputBytes is how much the stage printed, all of it held against admitted digests.
	OutputBytes uint64
}

// prove recomputes the evidence of a process that has ended from the event log, and holds what
// the runner has kept of its output against it. Anything less than full agreement is an error:
// a missing fact and a wrong one are the same to whoever relies on the result.
func (b *build) prove(ctx context.Context, binding frames.BindingID, status int32, log string) (Proof, error) {
	ledger := client.NewLedger(b.Context.CoordinatorID, binding)
	var evidence *frames.Evidence
	// The seal comes right behind the last fact. Where there is none, nothing more comes once the
	// process is known to have ended, and that too ends the reading.
	ended := func() bool { return ledger.Closed }
	trimmed, err := client.ReadHistoryToRest(ctx, b.Context, b.options, ended, func(e *client.Event) (enough bool, err error) {
		if err := ledger.Take(e); err != nil { // events of other objects are left alone
			return false, err
		}
		r, carries, err := e.Record()
		if err != nil || !carries || r.Ref() != (frames.ObjectRef{Kind: frames.KindEvidence, ID: frames.ObjectID(binding)}) {
			return false, err
		}
		p, err := r.DecodePayload()
		if err != nil {
			return false, err
		}
		evidence, enough = p.(*frames.Evidence)
		return enough, nil
	})
	switch {
	case err != nil:
		return Proof{}, err
	case !ledger.Whole() && trimmed > 0:
		return Proof{}, fmt.Errorf("retention has removed the events up to %d, and with them facts", trimmed)
	case !ledger.Whole(), ledger.Gaps > 0, evidence == nil:
		return Proof{}, fmt.Errorf("%d facts, %d gaps, sealed %t: not all that happened is known", ledger.Facts, ledger.Gaps, evidence != nil)
	case ledger.Seal() != evidence.Seal:
		return Proof{}, errors.New("the seal is not that of the facts in the event log")
	case !ledger.HasStatus || ledger.Status != status:
		return Proof{}, errors.New("the run's exit status is not that of the facts")
	}

	f, err := os.Open(log)
	if err != nil {
		return Proof{}, err
	}
	check := ledger.Check(io.Discard)
	_, err = io.Copy(check, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return Proof{}, err
	}
	if check.Read != ledger.OutputBytes() || check.Agreed != check.Read {
		return Proof{}, fmt.Errorf("%s has %d bytes, of which %d agree with the %d that the facts cover", log, check.Read, check.Agreed, ledger.OutputBytes())
	}
	return Proof{Facts: ledger.Facts, Seal: ledger.Seal(), OutputBytes: check.Read}, nil
}
