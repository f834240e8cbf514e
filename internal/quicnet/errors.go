package quicnet

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/quic-go/quic-go"
)

// An Error is the end of a connection in this package's words. It matches Kind,
// one of the package's errors. The error of QUIC behind it is left out: its text
// may hold the peer's, and it passes for net.ErrClosed, which here says that this
// side closed.
type Error struct {
	Kind error
	Text string // more than Kind says; may be empty
}

func (e *Error) Error() string {
	if e.Text == "" {
		return e.Kind.Error()
	}
	return fmt.Sprintf("%v: %s", e.Kind, e.Text)
}

// Unwrap gives Kind.
func (e *Error) Unwrap() error { return e.Kind }

// explain puts an error of QUIC into this package's words.
func explain(err error) error {
	var app *quic.ApplicationError
	var transport *quic.TransportError
	var stream *quic.StreamError
	var idle *quic.IdleTimeoutError
	var reset *quic.StatelessResetError
	switch {
	case errors.As(err, &app) && app.Remote && app.ErrorCode == 0:
		return &Error{Kind: ErrPeerClosed}
	case errors.As(err, &app):
		return &Error{Kind: ErrRefused, Text: fmt.Sprintf("code %d", uint64(app.ErrorCode))}
	case errors.As(err, &stream):
		return &Error{Kind: ErrViolation, Text: "the stream was reset"}
	case errors.As(err, &transport) && transport.Remote:
		return &Error{Kind: ErrRefused, Text: codeText(transport.ErrorCode)}
	case errors.As(err, &transport):
		return &Error{Kind: ErrViolation, Text: codeText(transport.ErrorCode)}
	case errors.As(err, &idle):
		return &Error{Kind: ErrLost, Text: "nothing has arrived for too long"}
	case errors.As(err, &reset):
		return &Error{Kind: ErrLost, Text: "the other side does not know it any more"}
	}
	return err
}

// codeText names a transport error code without the peer's own words.
func codeText(c quic.TransportErrorCode) string {
	if c.IsCryptoError() {
		return tls.AlertError(c & 0xff).Error()
	}
	return c.String()
}
