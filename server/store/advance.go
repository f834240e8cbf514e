package store

import "coordinator/frames"

// An Advance is how far a step has come that can take long.
type Advance struct {
	// Step says in words for people what is done.
	Step string
	// Unit is what is counted, in the plural; empty means bytes.
	Unit string
	// Done and Total are how many. A total that is not known is zero, and one of rows is about right.
	Done, Total int64
}

// Steps, as people are shown them.
const (
	stepLog      = "reading the log"
	stepPages    = "checking the pages of state.db"
	stepElements = "checking the elements of state.db"
	stepValues   = "checking the values of state.db"
	stepLoad     = "loading state.db"
	stepReplay   = "replaying the log"
	stepCount    = "counting the rows"
	stepCopy     = "copying state.db"
	stepCompare  = "comparing the copy"
	stepNewState = "writing state.db in the new schema"
	stepNewLog   = "writing the log in the new schema"

	unitRows    = "rows"
	unitCommits = "commits"
	unitValues  = "values"
)

// rowCounter tells of one row more with each call.
func rowCounter(advance func(Advance), step string, total int64) func() {
	done := int64(0)
	return func() {
		done++
		advance(Advance{Step: step, Unit: unitRows, Done: done, Total: total})
	}
}

// allRows is how many rows there are of all kinds.
func allRows(kinds map[frames.ObjectKind]uint64) (n int64) {
	for _, count := range kinds {
		n += int64(count)
	}
	return n
}
