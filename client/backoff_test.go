package client

import (
	"errors"
	"io/fs"
	"syscall"
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

// TestAFullDiskIsAMatterOfMoments: the state of a client cannot be written while its disk is
// full, which ends no follower. A quarantine is final all the same.
func TestAFullDiskIsAMatterOfMoments(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		full := &StateError{Path: "state", Problem: "cannot be written", Cause: &fs.PathError{Op: "write", Err: errno}}
		require.False(t, permanent(full))
		require.True(t, permanent(errors.Join(&QuarantineError{}, full)))
		require.True(t, permanent(&StateError{Path: "state", Problem: "is damaged"}))
		require.True(t, permanent(&StateError{Path: "state", Problem: "cannot be written", Cause: syscall.EROFS}))
		require.False(t, new(Session).again(full), "a command's caller is told at once")
	}
}
