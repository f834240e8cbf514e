package top

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"coordinator/cmd/internal/overview"
)

// plain makes s as wide on one terminal as on another: joiners and selectors are dropped, and
// what terminals draw as one character or as several is cut down to its first.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\u200c', r == '\u200d', r >= '\ufe00' && r <= '\ufe0f':
			return -1
		}
		return r
	}, s)
	s = strings.TrimLeftFunc(s, unicode.IsMark) // it would join what stands before the cell
	if len(s) == ansi.StringWidth(s) {          // nearly always
		return s
	}
	var b strings.Builder
	for s != "" {
		cluster, _ := ansi.FirstGraphemeCluster(s, ansi.GraphemeWidth)
		s = s[len(cluster):]
		if ansi.StringWidth(cluster) != ansi.StringWidthWc(cluster) {
			first, _ := utf8.DecodeRuneInString(cluster)
			if cluster = string(first); ansi.StringWidth(cluster) != ansi.StringWidthWc(cluster) {
				cluster = string(utf8.RuneError)
			}
		}
		b.WriteString(cluster)
	}
	return b.String()
}

// cell is s in exactly w columns.
func cell(s string, w int) string {
	if w <= 0 {
		return ""
	}
	s = ansi.Truncate(plain(s), w, "…")
	return s + strings.Repeat(" ", max(0, w-ansi.StringWidth(s)))
}

// right is cell with the text at the right end.
func right(s string, w int) string {
	s = ansi.Truncate(plain(s), w, "…")
	return strings.Repeat(" ", max(0, w-ansi.StringWidth(s))) + s
}

// short is the beginning of an id.
func short(id string) string { return id[:min(8, len(id))] }

// age is how long a row has been in its state; ">" says that it is longer than that.
func age(r *overview.Row, now time.Time) string {
	text := span(now.Sub(r.Since.Time))
	if r.SinceAtLeast {
		return ">" + text
	}
	return text
}

// span is a duration in at most four characters.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d < 1000*24*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	return "old"
}

// number is a count, empty for none.
func number(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// wrap breaks s into lines of at most w columns, and of those gives at most n.
func wrap(s string, w, n int) []string {
	lines := strings.Split(ansi.Wrap(plain(s), max(w, 1), " "), "\n")
	if len(lines) > n {
		lines = lines[:n]
		lines[n-1] = ansi.Truncate(lines[n-1]+"…", w, "…")
	}
	return lines
}
