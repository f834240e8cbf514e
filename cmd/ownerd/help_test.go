package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/helptest"
)

// TestHelp: every command says what it does and shows how, in lines that can be run.
func TestHelp(t *testing.T) {
	require.Empty(t, helptest.Check(rootCommand))
}
