package handshake

import (
	"encoding/hex"
	"slices"

	"coordinator/frames"
)

// NameOf is how a principal is called in a log: the label of its record, or the beginning of
// its key id while the registry has none.
func (s Snapshot) NameOf(key frames.KeyID) string {
	i := slices.IndexFunc(s.Records, func(r Record) bool { return r.KeyID == key })
	if i >= 0 && s.Records[i].Label != "" {
		return s.Records[i].Label
	}
	return ShortKey(key)
}

// ShortKey is the beginning of a key id, which is enough to find the line of a registry.
func ShortKey(key frames.KeyID) string { return hex.EncodeToString(key[:6]) }
