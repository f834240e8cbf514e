package docsh

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Block is one fenced block of a document.
type Block struct {
	File string // base name of the document
	Line int    // of the first line between the fences, from 1
	Lang string // first word of the info string
	Text string // between the fences, without the fence's indentation

	Skip    string        // why it is not run
	Fails   int           // the exit code that is right, 0 for success
	Host    string        // where it runs, or names separated by commas
	Timeout time.Duration // 0 for the test's own
	Output  bool          // a pattern of what the block before it prints
}

// Read returns the fenced blocks of a file in order.
func Read(path string) ([]Block, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parse(filepath.Base(path), string(raw))
}

func parse(file, text string) ([]Block, error) {
	var blocks []Block
	var fence, indent string // of the open block
	var body strings.Builder
	number := 0
	for line := range strings.Lines(text) {
		number++
		trimmed := strings.TrimLeft(line, " \t")
		if fence != "" {
			if rest, ok := strings.CutPrefix(trimmed, fence); ok && strings.TrimSpace(strings.TrimLeft(rest, fence[:1])) == "" {
				blocks[len(blocks)-1].Text = body.String()
				fence = ""
				continue
			}
			body.WriteString(strings.TrimPrefix(line, indent))
			continue
		}
		if fence = fenceOf(trimmed); fence == "" {
			continue
		}
		indent = line[:len(line)-len(trimmed)]
		body.Reset()
		b := Block{File: file, Line: number + 1}
		if err := b.info(strings.TrimSpace(trimmed[len(fence):])); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, number, err)
		}
		blocks = append(blocks, b)
	}
	if fence != "" {
		return nil, fmt.Errorf("%s:%d: the block is never closed", file, blocks[len(blocks)-1].Line-1)
	}
	return blocks, nil
}

// fenceOf is the run of three or more backticks or tildes that opens a block.
func fenceOf(line string) string {
	for _, c := range []string{"`", "~"} {
		if n := len(line) - len(strings.TrimLeft(line, c)); n >= 3 {
			return line[:n]
		}
	}
	return ""
}

// info reads the words after a fence.
func (b *Block) info(info string) error {
	b.Lang, info, _ = strings.Cut(info, " ")
	for info = strings.TrimSpace(info); info != ""; info = strings.TrimSpace(info) {
		var key, value string
		var err error
		if key, value, info, err = word(info); err != nil {
			return err
		}
		if err := b.set(key, value); err != nil {
			return err
		}
	}
	return nil
}

// word takes one key, key=value or key="value" off an info string.
func word(info string) (key, value, rest string, err error) {
	end := strings.IndexAny(info, " =")
	if end < 0 || info[end] == ' ' {
		key, rest, _ = strings.Cut(info, " ")
		return key, "", rest, nil
	}
	key, rest = info[:end], info[end+1:]
	if !strings.HasPrefix(rest, `"`) {
		value, rest, _ = strings.Cut(rest, " ")
		return key, value, rest, nil
	}
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return "", "", "", fmt.Errorf("the value of %s has no closing quote", key)
	}
	value, err = strconv.Unquote(quoted)
	return key, value, rest[len(quoted):], err
}

func (b *Block) set(key, value string) (err error) {
	switch key {
	case "skip":
		b.Skip = value
		if strings.TrimSpace(value) == "" {
			err = fmt.Errorf(`a skip needs its reason: skip="…"`)
		}
	case "fails":
		b.Fails, err = strconv.Atoi(value)
		if err == nil && (b.Fails < 1 || b.Fails > 255) {
			err = fmt.Errorf("fails=%d; an exit code of a failure is 1 to 255", b.Fails)
		}
	case "host":
		b.Host = value
		if slices.Contains(strings.Split(value, ","), "") {
			err = fmt.Errorf("host has no name")
		}
	case "timeout":
		b.Timeout, err = time.ParseDuration(value)
		if err == nil && b.Timeout <= 0 {
			err = fmt.Errorf("timeout=%s is no time", value)
		}
	case "output":
		b.Output = true
		if value != "" {
			err = fmt.Errorf("output has no value")
		}
	default:
		err = fmt.Errorf("unknown word %q in the info string", key)
	}
	return err
}

// script is what a shell runs of the block. It has as many lines as the block.
func (b *Block) script() string {
	if b.Lang != "console" {
		return b.Text
	}
	var out strings.Builder
	goesOn := false
	for line := range strings.Lines(b.Text) {
		command, is := strings.CutPrefix(line, "$ ")
		if is || goesOn {
			out.WriteString(command)
			goesOn = strings.HasSuffix(strings.TrimRight(command, "\n"), `\`)
			continue
		}
		out.WriteString("\n")
	}
	return out.String()
}
