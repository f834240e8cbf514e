package docsh

import (
	"regexp"
	"strings"
)

// matches says whether text is what pattern shows. Spaces at the ends of lines and empty
// lines at both ends of the whole do not count.
func matches(pattern, text string) bool {
	var re strings.Builder
	re.WriteString(`\A`)
	for line := range strings.SplitSeq(tidy(pattern), "\n") {
		if strings.TrimSpace(line) == "…" {
			re.WriteString(`(?:[^\n]*\n)*`)
			continue
		}
		for i, part := range strings.Split(line, "…") {
			if i > 0 {
				re.WriteString(`[^\n]*`)
			}
			re.WriteString(regexp.QuoteMeta(part))
		}
		re.WriteString(`\n`)
	}
	re.WriteString(`\z`)
	return regexp.MustCompile(re.String()).MatchString(tidy(text) + "\n")
}

func tidy(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t\r")
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}
