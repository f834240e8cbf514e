package runs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/owner"
)

// An OwnerError is a failure at a process owner, with its name.
type OwnerError struct {
	Name  string
	Cause error
}

func (e *OwnerError) Error() string { return fmt.Sprintf("owner %s: %v", e.Name, e.Cause) }

// Unwrap gives the failure.
func (e *OwnerError) Unwrap() error { return e.Cause }

// A SinkError is a failure to write output where it belongs.
type SinkError struct{ Cause error }

func (e *SinkError) Error() string { return "write the output: " + e.Cause.Error() }

// Unwrap gives the failure.
func (e *SinkError) Unwrap() error { return e.Cause }

// OwnerNamed is the context's owner of that authority. The error is a *[client.ContextError].
func OwnerNamed(c *client.Context, authority frames.Fingerprint) (client.Owner, error) {
	for _, o := range c.Owners {
		if o.Authority == authority {
			return o, nil
		}
	}
	return client.Owner{}, &client.ContextError{Path: c.Path,
		Problem: fmt.Sprintf("the run was started at the owner %v, and no [[owner]] of that authority is named in it", authority)}
}

// DialOwner connects to an owner of the context for reading output, which is also how its
// incarnation and groups are learned. A nil key means the context's. name says who dials.
// Failures are an *[OwnerError], or those of the key.
func DialOwner(ctx context.Context, c *client.Context, key handshake.Signer, o client.Owner, name string) (*owner.Client, error) {
	if key == nil {
		var err error
		if key, err = c.Signer(); err != nil {
			return nil, err
		}
	}
	opts := owner.ClientOptions{
		Socket: o.Socket, Pin: o.Authority, CoordinatorID: c.CoordinatorID, Key: key, Scope: owner.ScopeOutput,
		Name: name, Clock: clock.System(), Rand: rand.Reader,
	}
	if o.QUIC != "" {
		opts.Dial = owner.QUICDialer(o.QUIC, o.Authority, opts.Clock)
	}
	link, err := owner.Dial(ctx, opts)
	if err != nil {
		return nil, &OwnerError{o.Name, err}
	}
	if len(link.Groups()) == 0 {
		return nil, errors.Join(&OwnerError{o.Name, errors.New("it serves no terminal group")}, link.Close())
	}
	return link, nil
}

// ReadOutput hands what is stored of a binding's output to sink, in order and from offset
// (bytes before it) on, at most max bytes (zero: all). An error of sink must be a *[SinkError].
func ReadOutput(ctx context.Context, c *client.Context, key handshake.Signer, b frames.Binding, name string, offset, max uint64, sink func([]byte) error) (err error) {
	o, err := OwnerNamed(c, b.Binding.Owner)
	if err != nil {
		return err
	}
	link, err := DialOwner(ctx, c, key, o, name)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := link.Close(); err == nil {
			err = cerr
		}
	}()
	err = link.ReadOutput(ctx, b.Binding.BindingID, offset, max, false, func(_ uint64, data []byte) error { return sink(data) })
	if err != nil && !errors.As(err, new(*SinkError)) {
		err = &OwnerError{o.Name, err}
	}
	return err
}
