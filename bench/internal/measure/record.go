package measure

import (
	"math"
	"slices"
	"sync"
)

// A Row is one figure: the value of every repetition, and their median, least and most.
type Row struct {
	Part   string    `json:"part"`
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Note   string    `json:"note,omitempty"`
	Values []float64 `json:"values"`
}

// A Recorder collects rows in the order in which they first appear. It is safe for
// concurrent use.
type Recorder struct {
	part string

	mu   sync.Mutex
	rows []*Row          // guarded by mu
	byID map[string]*Row // guarded by mu
}

// NewRecorder makes a recorder of one part's rows.
func NewRecorder(part string) *Recorder {
	return &Recorder{part: part, byID: map[string]*Row{}}
}

// Add records the value of one repetition. What is no number is left out: it comes of a
// window in which nothing happened, and the report shows that fewer values are there.
func (r *Recorder) Add(name, unit string, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	row := r.byID[name]
	if row == nil {
		row = &Row{Part: r.part, Name: name, Unit: unit}
		r.byID[name] = row
		r.rows = append(r.rows, row)
	}
	row.Values = append(row.Values, v)
}

// Note puts a remark beside a figure that has a value.
func (r *Recorder) Note(name, note string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if row := r.byID[name]; row != nil {
		row.Note = note
	}
}

// Rows finishes the rows: their medians are those of the values so far.
func (r *Recorder) Rows() []*Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range r.rows {
		row.Median = Median(row.Values)
		row.Min, row.Max = slices.Min(row.Values), slices.Max(row.Values)
	}
	return slices.Clone(r.rows)
}

// Median is the middle value, or the mean of the middle two. Without values it is NaN.
func Median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	switch {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}
