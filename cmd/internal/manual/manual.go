// Package manual writes the manual pages of a program from its tree of commands.
//
// The programs do not hold it: each is built once with the tag manual, in which a run writes
// its pages and nothing else, as `make man` does.
package manual

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Main writes the pages of root into the directory that is the only argument of the process,
// one for each command, and gives its exit code.
func Main(root *cobra.Command, section string) int {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: DIR")
		return 2
	}
	if err := Write(root, section, os.Args[1], os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Write writes the pages. They bear the date of epoch, Unix seconds, so that one source makes
// one page; without it they bear the day of the release that they come with, none.
func Write(root *cobra.Command, section, dir, epoch string) error {
	header := &doc.GenManHeader{Section: section, Source: "coordinator", Manual: "Coordinator"}
	date := time.Unix(0, 0).UTC()
	if epoch != "" {
		secs, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		date = time.Unix(secs, 0).UTC()
	}
	header.Date = &date
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	tagless(root)
	return doc.GenManTree(root, header, dir)
}

// tagless leaves out the line about the generator.
func tagless(c *cobra.Command) {
	c.DisableAutoGenTag = true
	for _, sub := range c.Commands() {
		tagless(sub)
	}
}
