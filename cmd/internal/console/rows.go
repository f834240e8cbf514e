package console

import (
	"bytes"
	"encoding/json"

	"coordinator/client"
	"coordinator/frames"
)

// The tables of the page, in the order in which they are told.
var tableNames = [...]string{"signals", "objectives", "runs", "operations"}

// A table is the rows of one kind as JSON, by id, and their order.
type table struct {
	order []string
	rows  map[string]json.RawMessage
}

func (t *table) add(id string, row any) {
	t.order = append(t.order, id)
	t.rows[id] = encode(row)
}

// all is the rows in order.
func (t *table) all() []json.RawMessage {
	out := make([]json.RawMessage, 0, len(t.order))
	for _, id := range t.order {
		out = append(out, t.rows[id])
	}
	return out
}

// tables are what a page shows. They do not change once they are told.
type tables [len(tableNames)]table

func newTables() (t tables) {
	for i := range t {
		t[i].rows = map[string]json.RawMessage{}
	}
	return t
}

// whole is every table by its name.
func (t *tables) whole() map[string]any {
	out := map[string]any{}
	for i, name := range tableNames {
		out[name] = t[i].all()
	}
	return out
}

// A goneRow names a row that is no longer in its table.
type goneRow struct {
	Table string `json:"table"`
	ID    string `json:"id"`
}

// diff is what makes these tables the later ones: by the name of each table the rows that are
// new or other, and under "gone" those that are no more. Nothing is an empty map.
func (t *tables) diff(now tables) map[string]any {
	out := map[string]any{}
	var gone []goneRow
	for i, name := range tableNames {
		var rows []json.RawMessage
		for _, id := range now[i].order {
			if row := now[i].rows[id]; !bytes.Equal(row, t[i].rows[id]) {
				rows = append(rows, row)
			}
		}
		if rows != nil {
			out[name] = rows
		}
		for _, id := range t[i].order {
			if _, still := now[i].rows[id]; !still {
				gone = append(gone, goneRow{name, id})
			}
		}
	}
	if gone != nil {
		out["gone"] = gone
	}
	return out
}

// A record is a row that tells what every record has.
type record struct {
	ID       string `json:"id"`
	Revision string `json:"revision"`
	State    string `json:"state"`
	Text     string `json:"text"`
}

// tablesOf makes the rows of a view; nil has none.
func tablesOf(v *client.View) tables {
	t := newTables()
	if v == nil {
		return t
	}
	for i, kind := range []frames.ObjectKind{frames.KindSignal, frames.KindObjective, frames.KindRun, frames.KindOperation} {
		for r := range v.Kind(kind) {
			row := record{ID: r.ID().String(), Revision: decimal(r.Revision())}
			row.State, row.Text = words(r)
			t[i].add(row.ID, row)
		}
	}
	return t
}

// words are the state of a record and what a row says of it.
func words(r *client.Record) (state, text string) {
	m, err := r.Decode()
	if err != nil {
		return "", "a record of another schema"
	}
	switch p := m.(type) {
	case *frames.Objective:
		var d struct {
			Title string `json:"title"`
		}
		json.Unmarshal(p.Document, &d) //nolint:errcheck // a document need not have a title
		return p.State.String(), d.Title
	case *frames.Run:
		return p.State.String(), "attempt " + decimal(p.Attempt)
	case *frames.Signal:
		return p.State.String(), p.Message
	case *frames.Operation:
		return p.Result.State.String(), p.Result.Message
	}
	return "", ""
}
