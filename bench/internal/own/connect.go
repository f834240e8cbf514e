package own

import (
	"context"
	"fmt"
	"io"

	"coordinator/bench/internal/measure"
	"coordinator/client"
	"coordinator/frames"
)

// connect measures a connection with the whole handshake, to the reply to a first request.
func connect(ctx context.Context, e *measure.Env) error {
	r, err := startRig(ctx, e, nil)
	if err != nil {
		return err
	}
	defer r.stop()
	state, err := client.OpenState(r.unix)
	if err != nil {
		return err
	}
	nobodys := frames.OperationID{1} // no operation has this id
	for _, way := range []struct {
		name  string
		where *client.Context
	}{{"own.connect", r.unix}, {"own.connect.quic", r.quic}} {
		err := e.Connects(ctx, way.name, func() (io.Closer, error) {
			c, err := r.dial(ctx, way.where, client.Options{State: state})
			if err != nil {
				return nil, err
			}
			got, err := c.Lookup(ctx, nobodys)
			if err == nil && got.State != frames.OperationUnknown {
				err = fmt.Errorf("an operation that nobody made is %v", got.State)
			}
			return c, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
