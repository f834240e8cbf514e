package daemon

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// A SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal os.Signal }

func (e *SignalError) Error() string { return fmt.Sprintf("stopped by %v", e.Signal) }

// Signals returns a context that the first SIGTERM, SIGINT or SIGHUP ends (the last only
// where it is not ignored, as under nohup), with a *[SignalError] as its
// cause. A second one calls exit, which must not return, with the code of a shell: 128 + its
// number. The returned function undoes all that and joins the goroutine behind it.
func Signals(parent context.Context, exit func(code int)) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2) // room for both, whoever is slow to look
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	stop, joined := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(joined)
		for first := true; ; first = false {
			select {
			case s := <-signals:
				if first {
					cancel(&SignalError{Signal: s})
					continue
				}
				n, _ := s.(syscall.Signal)
				exit(128 + int(n))
			case <-stop:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stop)
		<-joined
		cancel(nil)
	}
}
