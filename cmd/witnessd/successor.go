package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/witness"

	"github.com/spf13/pflag"
)

// A successor is what init is told when the new witness takes the place of a lost one.
type successor struct{ above, coordinator, witnessID string }

func (s *successor) register(flags *pflag.FlagSet) {
	flags.StringVar(&s.above, "above", "", "EPOCH,ACTIVATION: take the place of a witness that is lost and granted no higher ones")
	flags.StringVar(&s.coordinator, "coordinator", "", "32 hex digits of the coordinator that the lost witness served (with --above)")
	flags.StringVar(&s.witnessID, "witness-id", "", "32 hex digits of the lost witness's id, to go by it still (with --above, and its key in place)")
}

// predecessor is what the flags say of the lost witness; nil without --above.
func (s *successor) predecessor() (*witness.Predecessor, error) {
	if s.above == "" {
		if s.coordinator != "" || s.witnessID != "" {
			return nil, daemon.Usage("--coordinator and --witness-id go with --above")
		}
		return nil, nil
	}
	first, second, ok := strings.Cut(s.above, ",")
	epoch, err := strconv.ParseUint(first, 10, 64)
	activation, aerr := strconv.ParseUint(second, 10, 64)
	if !ok || err != nil || aerr != nil || epoch == 0 || activation == 0 {
		return nil, daemon.Usage("--above must be EPOCH,ACTIVATION, two numbers from 1 such as 12,12")
	}
	id, err := frames.ParseID[frames.CoordinatorID](s.coordinator)
	if err != nil {
		return nil, daemon.Usage("--coordinator must be 32 hex digits, as coordinator.toml has them")
	}
	return &witness.Predecessor{CoordinatorID: id, Epoch: frames.AuthorityEpoch(epoch), Activation: frames.ActivationSequence(activation)}, nil
}

// id is the new witness's.
func (s *successor) id() (frames.WitnessID, error) {
	if s.witnessID == "" {
		return frames.NewID[frames.WitnessID](rand.Reader)
	}
	id, err := frames.ParseID[frames.WitnessID](s.witnessID)
	if err != nil {
		return id, daemon.Usage("--witness-id must be 32 hex digits, as witness.toml had them")
	}
	return id, nil
}

// create makes the state file, or takes the one that an interrupted init left, and gives
// the witness's id.
func (s *successor) create(dir string) (frames.WitnessID, error) {
	p, err := s.predecessor()
	if err != nil {
		return frames.WitnessID{}, err
	}
	id, err := s.id()
	if err != nil {
		return id, err
	}
	if p == nil {
		err = witness.Create(dir, id)
	} else {
		var boot string
		if boot, err = clock.BootID(); err != nil {
			return id, err
		}
		err = witness.CreateSuccessor(dir, id, *p, boot, clock.System().Now(), rand.Reader)
	}
	if !errors.Is(err, fs.ErrExist) {
		return id, coded(err)
	}
	have, leases, err := witness.Inspect(dir, "", clock.Reading{})
	if err != nil {
		return id, coded(err)
	}
	for _, l := range leases {
		if p != nil && l.Coordinator == p.CoordinatorID && l.LastEpoch == p.Epoch && l.Activation == p.Activation {
			p = nil
		}
	}
	if p != nil || s.witnessID != "" && have != id {
		return id, daemon.Exit(daemon.ExitConfig, fmt.Errorf("%s holds what an init with other flags left; remove the directory, or give the same flags", dir))
	}
	return have, nil
}
