package witness

import (
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/boltfile"
)

// maxBootID bounds the text of a boot id; the kernel's has 36 characters.
const maxBootID = 128

// A lease is all that is kept for one coordinator: its last activation (links.md, Witness).
type lease struct {
	Epoch       frames.AuthorityEpoch
	Activation  frames.ActivationSequence
	TokenHash   [32]byte // SHA-256; the token itself is kept nowhere
	Incarnation frames.IncarnationID
	Holder      frames.KeyID // the key that activated
	// Length is what was left when it was last granted or renewed. After a reboot the lease
	// counts as live that long from the witness's start.
	Length time.Duration
	// BootID is the boot in which Expires counts.
	BootID  string
	Expires time.Duration // BOOTTIME of the end
	// IssuedAt and ExpiresAt are the wall times of the last certificate, Unix seconds. They
	// decide nothing.
	IssuedAt, ExpiresAt uint64
	// Spent is set by a relinquishment: the lease delays nobody any more.
	Spent bool
}

// Image lays out the stored fields.
func (l *lease) Image(i *codec.Image) {
	codec.ImgNonzeroU64(i, &l.Epoch)
	codec.ImgNonzeroU64(i, &l.Activation)
	codec.ImgHash32(i, &l.TokenHash)
	codec.ImgID16(i, &l.Incarnation)
	codec.ImgHash32(i, &l.Holder)
	imgDuration(i, &l.Length)
	codec.ImgStr(i, &l.BootID, maxBootID)
	imgDuration(i, &l.Expires)
	codec.ImgU64(i, &l.IssuedAt)
	codec.ImgU64(i, &l.ExpiresAt)
	codec.ImgBool(i, &l.Spent)
}

// imgDuration walks a duration that is not negative, in nanoseconds.
func imgDuration(i *codec.Image, d *time.Duration) {
	n := uint64(*d)
	codec.ImgU64(i, &n)
	i.Check(n>>63 == 0, codec.ErrInvalid)
	*d = time.Duration(n)
}

// header is the value under [headerKey]: whose file this is, and what must be in it.
type header struct {
	Schema  uint32
	Witness frames.WitnessID
	Leases  uint32 // number of coordinators
	// TxID is the bbolt transaction that wrote this header, which is every one. A page that
	// a damaged pointer brings back from an older transaction shows here.
	TxID uint64
}

// Image lays out the stored fields.
func (h *header) Image(i *codec.Image) {
	codec.ImgU32(i, &h.Schema)
	codec.ImgID16(i, &h.Witness)
	codec.ImgU32(i, &h.Leases)
	codec.ImgU64(i, &h.TxID)
}

// seal encodes v as a stored value of key.
func seal(key []byte, v codec.Value) ([]byte, error) {
	return boltfile.Seal(key, func(dst []byte) ([]byte, error) { return codec.EncodeImage(dst, v) })
}

// unseal checks and decodes a stored value of key.
func unseal(key, value []byte, v codec.Value) error {
	fields, err := boltfile.Unseal(key, value)
	if err != nil {
		return err
	}
	return codec.DecodeImage(v, fields)
}
