package output

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"coordinator/internal/text"
)

// marshal is a value as JSON of which nothing steers a terminal. Only text can hold such characters, and
// there an escape is the same character to whoever reads it.
func marshal(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return escape(raw, func(r rune) string {
		if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
			return fmt.Sprintf(`\u%04x\u%04x`, high, low)
		}
		return fmt.Sprintf(`\u%04x`, r)
	}), nil
}

// steers reports whether a character of a text must be escaped. What takes the place of broken UTF-8 need
// not, and line feeds are escaped already or stand in blocks.
func steers(r rune) bool { return r != utf8.RuneError && r != '\n' && text.Steers(r) }

// escape replaces the characters that steer a terminal.
func escape(raw []byte, as func(rune) string) []byte {
	var out strings.Builder
	for i, from := 0, 0; ; {
		if i == len(raw) {
			if from == 0 {
				return raw // as nearly always
			}
			out.Write(raw[from:])
			return []byte(out.String())
		}
		r, n := utf8.DecodeRune(raw[i:])
		if steers(r) || r == utf8.RuneError && n == 1 { // a document's own bytes may be no UTF-8
			out.Write(raw[from:i])
			out.WriteString(as(r))
			from = i + n
		}
		i += n
	}
}
