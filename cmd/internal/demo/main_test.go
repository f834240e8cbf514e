package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/internal/docsh"
)

func TestMain(m *testing.M) { os.Exit(docsh.Main(m)) }

// TestDemo runs what `make demo` runs. The demo fails at the first thing that is not as
// it says.
func TestDemo(t *testing.T) {
	bin, err := docsh.Programs()
	require.NoError(t, err)
	require.NoError(t, run(bin))
}
