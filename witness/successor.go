package witness

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"time"

	"coordinator/frames"
	"coordinator/internal/boltfile"
	"coordinator/internal/clock"
	"coordinator/internal/durable"

	bolt "go.etcd.io/bbolt"
)

// A Predecessor is what is known of the witness whose place another one takes.
type Predecessor struct {
	CoordinatorID frames.CoordinatorID
	// Epoch and Activation are at least the highest that it granted, as coordinator, owners
	// and clients know them. More does no harm; less is refused by whoever knows better
	// (protocol.md §4 [D-10]).
	Epoch      frames.AuthorityEpoch
	Activation frames.ActivationSequence
}

func (p *Predecessor) check() error {
	switch {
	case p.CoordinatorID == (frames.CoordinatorID{}):
		return errors.New("the coordinator is missing")
	case p.Epoch == 0 || p.Activation == 0:
		return errors.New("epoch and activation begin at 1")
	case p.Epoch == math.MaxUint64 || p.Activation == math.MaxUint64:
		return errors.New("epochs or activations are used up")
	}
	return nil
}

// CreateSuccessor is [Create] for a witness that follows one which is lost. The old one may
// have granted a lease of the longest length a moment ago, so that long, from now and from
// the first start after a reboot, the new one grants none: its file begins with a lease that
// nobody can renew.
func CreateSuccessor(dir string, id frames.WitnessID, p Predecessor, bootID string, now clock.Reading, rand io.Reader) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("create witness: %w", err)
	}
	if id == (frames.WitnessID{}) {
		return errors.New("create witness: the witness id is zero")
	}
	if err := CheckPlacement(dir, ""); err != nil {
		return err
	}
	if err := durable.CheckPrivateDir(dir); err != nil {
		return err
	}
	g, err := p.lease(bootID, now, rand)
	if err != nil {
		return err
	}
	return boltfile.Create(filepath.Join(dir, stateFile), func(tx *bolt.Tx) error {
		if err := putHeader(tx, &header{Schema: schemas.Newest(), Witness: id, Leases: 1}); err != nil {
			return err
		}
		value, err := seal(p.CoordinatorID[:], g)
		if err != nil {
			return err
		}
		return tx.Bucket([]byte(bucketName)).Put(p.CoordinatorID[:], value)
	})
}

// lease is the longest that the predecessor can have granted.
func (p *Predecessor) lease(bootID string, now clock.Reading, rand io.Reader) (*lease, error) {
	const length = MaxLeaseSecs * time.Second
	g := &lease{
		Epoch: p.Epoch, Activation: p.Activation, Length: length, BootID: bootID, Expires: now.Boot + length,
		IssuedAt: now.Unix(), ExpiresAt: now.Unix() + MaxLeaseSecs,
	}
	// Of a token that nobody has.
	if _, err := io.ReadFull(rand, g.TokenHash[:]); err != nil {
		return nil, fmt.Errorf("create witness: %w", err)
	}
	var err error
	if g.Incarnation, err = frames.NewID[frames.IncarnationID](rand); err != nil {
		return nil, fmt.Errorf("create witness: %w", err)
	}
	return g, nil
}
