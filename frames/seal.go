package frames

import (
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
)

// errSealState refuses a kept seal that this program did not keep.
var errSealState = errors.New("the kept state of an evidence seal is malformed")

// AppendState appends what [ResumeEvidenceSeal] needs to go on with the seal later. Keeping
// it beside each fact makes the running hash as durable as the facts (§11 [D-22]).
//
//	count:u64 || state of the hash
func (s *EvidenceSeal) AppendState(dst []byte) ([]byte, error) {
	dst = binary.BigEndian.AppendUint64(dst, s.count)
	a, ok := s.h.(encoding.BinaryAppender)
	if !ok {
		panic("frames: SHA-256 state cannot be kept")
	}
	return a.AppendBinary(dst)
}

// ResumeEvidenceSeal goes on with a seal that [EvidenceSeal.AppendState] kept, also one of an
// earlier program.
func ResumeEvidenceSeal(state []byte) (*EvidenceSeal, error) {
	if len(state) < 8 {
		return nil, errSealState
	}
	h := sha256.New()
	if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(state[8:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errSealState, err)
	}
	return &EvidenceSeal{h: h, count: binary.BigEndian.Uint64(state)}, nil
}
