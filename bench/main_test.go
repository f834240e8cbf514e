package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/bench/internal/limits"
	"coordinator/bench/internal/own"
	"coordinator/bench/internal/peers"
)

// TestOrderNamesEveryPart keeps parts from being compared at different times by mistake.
func TestOrderNamesEveryPart(t *testing.T) {
	var names []string
	for _, p := range inOrder(limits.Parts(), peers.Parts(), own.Parts()) {
		names = append(names, p.Name)
	}
	require.Equal(t, sideBySide, names)
}

func TestParts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		o     options
		fails string
		first string
	}{
		{"nothing", options{}, "nothing to run", ""},
		{"no match", options{match: "^x$"}, "no part's name", ""},
		{"bad expression", options{match: "("}, "error parsing", ""},
		{"extra by name", options{match: "bbolt"}, "", "limits/bbolt"},
		{"own", options{own: true}, "", "own/commands"},
		{"growth", options{growth: .1}, "", "growth/0.001"},
		{"one of growth", options{growth: 1, match: "^growth/1$"}, "", "growth/1"},
		{"all", options{all: true}, "", "limits/disk"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parts, err := tt.o.parts()
			if tt.fails != "" {
				require.ErrorContains(t, err, tt.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.first, parts[0].Name)
		})
	}
}
