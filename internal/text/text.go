// Package text keeps what others chose the words of within its bounds.
package text

import (
	"strings"
	"unicode/utf8"
)

// Clip makes s valid UTF-8 of at most n bytes, cut between characters.
func Clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
