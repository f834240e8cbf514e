package server

import (
	"strings"
	"unicode/utf8"
)

// clip makes s valid UTF-8 of at most n bytes, cut between characters. Every
// selected frame cap holds [frames.MaxText] and the fields around it.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
