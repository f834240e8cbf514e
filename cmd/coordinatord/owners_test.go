package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// withOwners is a good configuration with [[owner]] tables behind it.
func withOwners(t *testing.T, tables string) (*config, error) {
	t.Helper()
	return parseConfig("/state", "/state/coordinator.toml", []byte(goodConfig(t)+tables))
}

func TestOwnersOfTheConfiguration(t *testing.T) {
	pin := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	tables := "[[owner]]\nname = \"a\"\nsocket = \"/run/o/owner.sock\"\nauthority = \"" + pin("a") + "\"\n" +
		"[[owner]]\nname = \"b\"\nquic = \"host:7742\"\nauthority = \"" + pin("b") + "\"\n"
	c, err := withOwners(t, tables)
	require.NoError(t, err)
	require.Len(t, c.Owners, 2)
	require.Equal(t, ownerConfig{Name: "b", QUIC: "host:7742", Pin: c.Owners[1].Pin}, c.Owners[1])
	again, err := parseConfig("/state", "/state/coordinator.toml", configText(c))
	require.NoError(t, err)
	require.Equal(t, c, again, "what is written reads back")

	for name, tt := range map[string]struct{ from, to, want string }{
		"no name":            {`name = "a"`, `name = ""`, "owner[0].name"},
		"one name twice":     {`name = "b"`, `name = "a"`, "owner[1].name"},
		"relative socket":    {"/run/o/owner.sock", "owner.sock", "owner[0].socket"},
		"long socket":        {"/run/o/owner.sock", "/" + strings.Repeat("d", 200), "owner[0].socket"},
		"both addresses":     {`quic = "host:7742"`, "quic = \"host:7742\"\nsocket = \"/o\"", "owner[1].quic"},
		"bad address":        {"host:7742", "host", "owner[1].quic"},
		"bad pin":            {pin("a"), "sha256:AA", "owner[0].authority"},
		"one pin twice":      {pin("b"), pin("a"), "owner[1].authority"},
		"unknown key":        {`name = "a"`, "name = \"a\"\ngroup = 1", "owner.group"},
		"neither address is": {`quic = "host:7742"`, "", "owner[1].socket"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, tables, tt.from)
			_, err := withOwners(t, strings.Replace(tables, tt.from, tt.to, 1))
			require.ErrorContains(t, err, tt.want)
			require.ErrorContains(t, err, "/state/coordinator.toml")
		})
	}
	many := strings.Repeat("[[owner]]\n", maxOwners+1)
	_, err = withOwners(t, many)
	require.ErrorContains(t, err, "256 or fewer")
}
