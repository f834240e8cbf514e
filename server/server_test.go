package server

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHelloCommandSnapshot(t *testing.T) {
	r := newRig(t)
	r.start()
	p := r.connect(r.keys[0])
	id := p.create("{}")
	s := p.snapshot()
	rec := s.find(objective(id))
	require.NotNil(t, rec)
	require.EqualValues(t, 1, rec.Revision)
	require.NoError(t, r.stop())
}
