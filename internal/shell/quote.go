// Package shell makes text safe to paste into a POSIX shell. It runs nothing.
package shell

import "strings"

// Quote returns s as one word of a shell: as it is when it needs no quotes, else in
// single quotes.
func Quote(s string) string {
	if s != "" && !strings.ContainsFunc(s, needsQuotes) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func needsQuotes(r rune) bool {
	plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%,=", r)
	return !plain
}
