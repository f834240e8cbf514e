//go:build failpoint

package commit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/internal/failpoint"
)

func TestFailPointsStandBehindPublicationAndBehindTheReplies(t *testing.T) {
	b := newBed(t)
	for _, name := range []string{"published", "replied"} {
		defer failpoint.Set(name, func() { b.trace = append(b.trace, "failpoint "+name) })()
	}
	require.NoError(t, b.do(create(t, 1, 1, "a"), alice).err)
	require.Equal(t, []string{"published", "failpoint published", "replied", "failpoint replied"}, b.trace)
}
