// Package runs knows what belongs to a run and what of it can be proved: its family of records,
// the facts of its event log, the evidence over them, the words for each, and the link to the
// process owner that stores its output.
//
// It prints nothing and decides no exit code; the commands that show runs do.
package runs
