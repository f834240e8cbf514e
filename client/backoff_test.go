package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// A slow network makes a handshake late, and the coordinator then says PROTOCOL_ERROR
// (protocol.md §2.3 [D-7]). Whoever goes on for ever must go on after that.
func TestAHandshakeThatTookTooLongIsTriedAgain(t *testing.T) {
	late := &RefusedError{frames.CodeProtocolError, "the handshake took too long"}
	require.False(t, permanent(notSent(late)))
	require.True(t, new(Session).again(notSent(late)))
	require.False(t, new(Session).again(late), "it has ended a command")
	require.True(t, permanent(notSent(&RefusedError{frames.CodeVersionIncompatible, ""})))
}
