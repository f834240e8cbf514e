package docs

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/internal/boltfile"
	"coordinator/owner"
	"coordinator/server/store"
	"coordinator/witness"
)

// The texts of refusals in upgrades.md are those of the programs.
func TestRefusalsAreQuotedAsTheyAre(t *testing.T) {
	raw, err := os.ReadFile("upgrades.md")
	require.NoError(t, err)
	for _, err := range []error{
		&store.SchemaError{File: "DIR/state.db", Have: 2, Want: 1},
		&store.SchemaError{File: "DIR/state.db", Have: 1, Want: 2},
		&witness.SchemaError{File: "DIR/witness.db", Have: 2, Want: 1},
		&owner.SchemaError{File: "DIR/owner.db", Have: 2, Want: 1},
		&boltfile.RoomError{File: "DIR", Need: 402653184, Free: 50000},
	} {
		require.Contains(t, string(raw), "\n"+err.Error()+"\n")
	}
}

// The table of upgrades.md names the protocol of this checkout; the packages of the files
// have tests of their schemas.
func TestTheProtocolIsThatOfThePrograms(t *testing.T) {
	raw, err := os.ReadFile("upgrades.md")
	require.NoError(t, err)
	rows := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]*) \| ([^|]*) \|`).FindAllStringSubmatch(string(raw), -1) {
		rows[m[1]] = m[2]
	}
	v := frames.CurrentVersion()
	require.Equal(t, fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch), rows["protocol of the endpoint"])
	require.Equal(t, rows["protocol of the endpoint"], rows["links to the witness and to owners"])
}
