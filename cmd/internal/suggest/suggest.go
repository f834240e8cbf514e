// Package suggest finds the words that a mistyped one may have been meant for, for every command line
// here: commands, flags, and the words that flags and arguments take.
//
// It decides nothing: whoever asks has already refused the word.
package suggest

import (
	"slices"
	"strings"
	"unicode"
)

const (
	// maxWord bounds what is compared, in characters: nobody mistypes more, and the cost of a
	// comparison is the product of both lengths.
	maxWord = 64
	// maxWords bounds how many words are named.
	maxWords = 3
	// leastPrefix is the shortest beginning that stands for a word.
	leastPrefix = 3
)

// Nearest gives those of known that word may be a slip of or the beginning of, the nearest first and at
// most three. Case makes no difference, and neither do '-' and '_'. A word that is known as it stands
// is not among them.
func Nearest(word string, known []string) []string {
	typed := fold(word)
	if len(typed) == 0 || len(typed) > maxWord {
		return nil
	}
	type candidate struct {
		word string
		far  int
	}
	var near []candidate
	for _, k := range known {
		if k == word || slices.ContainsFunc(near, func(c candidate) bool { return c.word == k }) {
			continue
		}
		meant := fold(k)
		if len(meant) == 0 || len(meant) > maxWord {
			continue
		}
		far := distance(typed, meant)
		if far <= slips(min(len(typed), len(meant))) || begins(typed, meant) {
			near = append(near, candidate{k, far})
		}
	}
	slices.SortStableFunc(near, func(a, b candidate) int { return a.far - b.far })
	var out []string
	for _, c := range near[:min(len(near), maxWords)] {
		out = append(out, c.word)
	}
	return out
}

// Hint is what to add to a complaint about word: "; did you mean x or y?", or nothing when no word
// is near.
func Hint(word string, known []string) string { return ask(Nearest(word, known)) }

func ask(words []string) string {
	if len(words) == 0 {
		return ""
	}
	last := len(words) - 1
	text := words[last]
	if last > 0 {
		text = strings.Join(words[:last], ", ") + " or " + text
	}
	return "; did you mean " + text + "?"
}

// slips is how many may be made in a word of n characters: every word of two letters is near to every
// other one by two slips.
func slips(n int) int {
	switch {
	case n <= 2:
		return 0
	case n <= 4:
		return 1
	case n <= 8:
		return 2
	}
	return 3
}

func begins(typed, meant []rune) bool {
	return len(typed) >= leastPrefix && len(typed) < len(meant) && slices.Equal(typed, meant[:len(typed)])
}

// fold is a word as it is compared.
func fold(s string) []rune {
	if len(s) > 4*maxWord { // in bytes, so that nothing larger is converted
		s = s[:4*maxWord+1]
	}
	out := []rune(s)
	for i, r := range out {
		if out[i] = unicode.ToLower(r); r == '_' {
			out[i] = '-'
		}
	}
	return out
}

// distance counts the slips that make b of a: a character left out, put in, changed, or two neighbours
// swapped (optimal string alignment).
func distance(a, b []rune) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			changed := 1
			if a[i-1] == b[j-1] {
				changed = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+changed)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
