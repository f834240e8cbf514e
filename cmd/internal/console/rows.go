package console

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"coordinator/cmd/internal/overview"
	"coordinator/frames"
	"coordinator/handshake"
)

// A table is the rows of one kind by id. The rows never change.
type table[T any] struct {
	rows map[string]*T
	head func(*T) *overview.Row
}

func newTable[T any](head func(*T) *overview.Row) table[T] {
	return table[T]{map[string]*T{}, head}
}

// put takes rows that are new or have changed.
func (t table[T]) put(rows []*T) {
	for _, r := range rows {
		t.rows[t.head(r).ID] = r
	}
}

// list is the rows that ok is true of, nil: all of them, in order.
func (t table[T]) list(ok func(*T) bool) []*T {
	out := []*T{}
	for _, r := range t.rows {
		if ok == nil || ok(r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *T) int { return cmp.Compare(t.head(a).Sort, t.head(b).Sort) })
	return out
}

// tables are the rows of a page.
type tables struct {
	signals    table[overview.Signal]
	objectives table[overview.Objective]
	runs       table[overview.Run]
	operations table[overview.Operation]
}

func newTables() tables {
	return tables{
		newTable(func(r *overview.Signal) *overview.Row { return &r.Row }),
		newTable(func(r *overview.Objective) *overview.Row { return &r.Row }),
		newTable(func(r *overview.Run) *overview.Row { return &r.Row }),
		newTable(func(r *overview.Operation) *overview.Row { return &r.Row }),
	}
}

// apply takes what has changed.
func (t *tables) apply(d *overview.Delta) {
	t.signals.put(d.Signals)
	t.objectives.put(d.Objectives)
	t.runs.put(d.Runs)
	t.operations.put(d.Operations)
	for _, g := range d.Gone {
		switch g.Table {
		case overview.SignalsTable:
			delete(t.signals.rows, g.ID)
		case overview.ObjectivesTable:
			delete(t.objectives.rows, g.ID)
		case overview.RunsTable:
			delete(t.runs.rows, g.ID)
		case overview.OperationsTable:
			delete(t.operations.rows, g.ID)
		}
	}
}

// decimal is a number as JSON has it here.
func decimal[N ~uint16 | ~uint32 | ~uint64](n N) string { return strconv.FormatUint(uint64(n), 10) }

// stamp is a wire time as JSON has it here; nothing for none.
func stamp(unix uint64) *overview.Time {
	const last = 253402300799 // the end of year 9999, beyond which the format has no room
	if unix == 0 {
		return nil
	}
	return &overview.Time{Time: time.Unix(int64(min(unix, last)), 0)}
}

// keyID names a key.
func keyID(k handshake.Signer) string { return handshake.KeyIDOf(k.Public()).String() }

// scopeNames spells a scope as the registry does.
func scopeNames(s frames.Scope) []string {
	text := handshake.EndpointScopes().Format(uint64(s))
	if text == "" {
		return []string{}
	}
	return strings.Split(text, ",")
}
