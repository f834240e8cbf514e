package top

import (
	"context"
	"errors"
	"fmt"
	"os"

	tea "charm.land/bubbletea/v2"

	"coordinator/client"
	"coordinator/cmd/internal/overview"
	"coordinator/frames"
)

// ErrPanic says that the screen failed by a bug of this program; the terminal has been
// restored, and where it was is on standard error.
var ErrPanic = errors.New("top: the screen failed")

// Run shows the screen until it is quit or ctx ends, which is no error, and restores the
// terminal. It gives the operations that were sent and whose outcome is not known. Its error
// is why the replica has ended, or what keeps the terminal from being used.
func Run(ctx context.Context, opts Options) (unsettled []frames.OperationID, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := newModel(ctx, &opts)
	environ := opts.Environ
	if environ == nil {
		environ = os.Environ()
	}
	in, err := newInput(ctx, opts.Input)
	if err != nil {
		return nil, err
	}
	p := tea.NewProgram(m, append([]tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(opts.Output),
		tea.WithEnvironment(environ), tea.WithoutSignalHandler()}, opts.extra...)...)
	followed := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil { // the terminal first, then the panic
				p.Kill()
				followed <- fmt.Errorf("%w: %v", ErrPanic, r)
			}
		}()
		followed <- overview.Follow(ctx, opts.Replica, opts.Follow, func(o *overview.Model, d *overview.Delta) error {
			p.Send(takeUpdate(o, d))
			return nil
		})
	}()
	_, err = p.Run()
	cancel()
	in.end()
	m.busy.Wait()
	return m.unsettled(), errors.Join(screenError(err), followError(ctx, <-followed))
}

// screenError is what ended the program, unless somebody wanted that.
func screenError(err error) error {
	switch {
	case errors.Is(err, tea.ErrProgramPanic):
		return ErrPanic
	case errors.Is(err, tea.ErrProgramKilled), errors.Is(err, tea.ErrInterrupted):
		return nil
	}
	return err
}

// followError is why the replica has ended, unless somebody wanted that.
func followError(ctx context.Context, err error) error {
	if errors.Is(err, context.Cause(ctx)) || errors.Is(err, client.ErrClosed) {
		return nil
	}
	return err
}
