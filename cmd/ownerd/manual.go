//go:build manual

package main

import (
	"os"

	"coordinator/cmd/internal/manual"
)

// Built with this tag the program writes its manual pages.
func init() { os.Exit(manual.Main(rootCommand(), "8")) }
