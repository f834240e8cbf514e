package own

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
)

// setQuotas writes quotas into both tables of coordinator.toml, where they stand as
// comments with their defaults. A name that does not stand there is an error.
func setQuotas(path string, quotas map[string]int) error {
	if len(quotas) == 0 {
		return nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	set := map[string]int{}
	table := ""
	for text := range strings.Lines(string(raw)) {
		trimmed := strings.TrimSpace(text)
		if strings.HasPrefix(trimmed, "[") {
			table = trimmed
		}
		name, _, found := strings.Cut(strings.TrimPrefix(trimmed, "# "), " = ")
		if value, ok := quotas[name]; ok && found && strings.HasPrefix(table, "[quota.") {
			set[name]++
			text = fmt.Sprintf("%s = %d\n", name, value)
		}
		out.WriteString(text)
	}
	for name := range quotas {
		if set[name] != 2 {
			return fmt.Errorf("%s: quota %q stands in %d of the two tables", path, name, set[name])
		}
	}
	return os.WriteFile(path, out.Bytes(), 0o600)
}

// quotaText is how a report prints raised quotas.
func quotaText(quotas map[string]int) string {
	var parts []string
	for name, value := range quotas {
		parts = append(parts, fmt.Sprintf("%s = %d", name, value))
	}
	slices.Sort(parts)
	return "quotas: " + strings.Join(parts, ", ")
}
