package codec

// maxVarint is the longest varint that may stand on the wire: field ids reach 2^31-1 and
// lengths are at most 5 bytes (protocol.md §2.1 [D-2]).
const maxVarint = 5

// AppendVarint appends v as minimal unsigned LEB128.
func AppendVarint(dst []byte, v uint64) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}

// varintLen is the number of bytes of AppendVarint(nil, v).
func varintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// readVarint reads a minimal varint of at most 5 bytes and returns what follows it.
func readVarint(b []byte) (v uint64, rest []byte, err error) {
	for n := range b {
		if n == maxVarint {
			return 0, nil, ErrVarint
		}
		c := b[n]
		v |= uint64(c&0x7f) << (7 * n)
		if c < 0x80 {
			if c == 0 && n > 0 {
				return 0, nil, ErrVarint
			}
			return v, b[n+1:], nil
		}
	}
	if len(b) >= maxVarint {
		return 0, nil, ErrVarint
	}
	return 0, nil, ErrTruncated
}
