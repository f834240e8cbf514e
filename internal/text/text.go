// Package text keeps what others chose the words of within its bounds.
package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Inert makes s harmless to show: what could steer a terminal or turn the order of what is
// read - control and format characters, separators of lines, broken UTF-8 - becomes U+FFFD.
// The two joiners stay, which scripts and emoji need.
func Inert(s string) string {
	return strings.Map(func(r rune) rune {
		if Steers(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// Steers reports whether [Inert] replaces a character.
func Steers(r rune) bool {
	if r == '\u200c' || r == '\u200d' {
		return false
	}
	return r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp)
}

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
