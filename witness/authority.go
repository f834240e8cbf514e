package witness

import (
	"context"

	"coordinator/frames"
)

// An Authority grants activations to one coordinator. A *[RefusedError] is the witness's own
// no; with any other error there is no answer and the request may have been carried out.
//
// A caller that counts a lease on its own clock (protocol.md [D-9]) reads that clock before
// the call: whatever the call does before it sends only shortens what the caller counts.
type Authority interface {
	// Activate asks for a new activation at epoch with a lease of leaseSecs seconds.
	Activate(ctx context.Context, epoch frames.AuthorityEpoch, inc frames.IncarnationID, leaseSecs uint16) (frames.Certificate, error)
	// Renew prolongs the lease of cur.
	Renew(ctx context.Context, cur frames.Certificate, leaseSecs uint16) (frames.Certificate, error)
	// Relinquish gives the lease of cur back.
	Relinquish(ctx context.Context, cur frames.Certificate) error
	// Status says where the coordinator stands.
	Status(ctx context.Context) (Status, error)
}

// Local is the Authority of one coordinator over a Witness in the same process: the same
// rules without a link.
type Local struct {
	Witness     *Witness
	Coordinator frames.CoordinatorID
	Holder      frames.KeyID // stands for the key of the link
}

var _ Authority = Local{}

// Activate calls [Witness.Activate].
func (l Local) Activate(ctx context.Context, epoch frames.AuthorityEpoch, inc frames.IncarnationID, leaseSecs uint16) (frames.Certificate, error) {
	if err := ctx.Err(); err != nil {
		return frames.Certificate{}, err
	}
	return l.Witness.Activate(l.Holder, l.Coordinator, epoch, inc, leaseSecs)
}

// Renew calls [Witness.Renew].
func (l Local) Renew(ctx context.Context, cur frames.Certificate, leaseSecs uint16) (frames.Certificate, error) {
	if err := ctx.Err(); err != nil {
		return frames.Certificate{}, err
	}
	return l.Witness.Renew(l.Coordinator, cur.Epoch, cur.Activation, cur.IncarnationID, cur.Token, leaseSecs)
}

// Relinquish calls [Witness.Relinquish].
func (l Local) Relinquish(ctx context.Context, cur frames.Certificate) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return l.Witness.Relinquish(l.Holder, l.Coordinator, cur.Token, cur.IncarnationID)
}

// Status calls [Witness.Status].
func (l Local) Status(ctx context.Context) (Status, error) {
	if err := ctx.Err(); err != nil {
		return Status{}, err
	}
	return l.Witness.Status(l.Coordinator)
}
