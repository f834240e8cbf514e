package term

import (
	"bytes"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// columnGap is the room between two columns.
const columnGap = 2

// A Table lines up cells that end in a tab, as text/tabwriter does: a column is as wide as the widest
// of its cells in lines that follow each other. Widths are those on a terminal: what paints a cell
// takes no room and a wide character takes two.
type Table struct {
	w    io.Writer
	text bytes.Buffer
}

// NewTable makes a table that Flush writes to w.
func NewTable(w io.Writer) *Table { return &Table{w: w} }

// Write takes lines of cells. It does not fail.
func (t *Table) Write(p []byte) (int, error) { return t.text.Write(p) }

// Flush writes the table.
func (t *Table) Flush() error {
	text := t.text.String()
	t.text.Reset()
	if text == "" {
		return nil
	}
	ended := strings.HasSuffix(text, "\n")
	var lines [][]string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	widths := columnWidths(lines)
	var out strings.Builder
	for i, cells := range lines {
		last := len(cells) - 1
		for j, c := range cells[:last] {
			out.WriteString(c)
			out.WriteString(strings.Repeat(" ", widths[i][j]-ansi.StringWidth(c)))
		}
		out.WriteString(cells[last])
		if i+1 < len(lines) || ended {
			out.WriteByte('\n')
		}
	}
	_, err := io.WriteString(t.w, out.String())
	return err
}

// columnWidths are the widths of the cells that end in a tab, line by line.
func columnWidths(lines [][]string) [][]int {
	widths := make([][]int, len(lines))
	for i, cells := range lines {
		widths[i] = make([]int, len(cells)-1)
	}
	for i := range lines {
		for j := range widths[i] {
			if widths[i][j] != 0 {
				continue // of a column that began above
			}
			end, widest := i, 0
			for ; end < len(lines) && j < len(widths[end]); end++ {
				widest = max(widest, ansi.StringWidth(lines[end][j]))
			}
			for ; end > i; end-- {
				widths[end-1][j] = widest + columnGap
			}
		}
	}
	return widths
}
