package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"time"
)

const (
	// noisySteal is the share of the machine's time, in percent, that other guests may take
	// before a part is run once more.
	noisySteal = 3
	// rerunMargin is how much longer than the first a second run of a part may take.
	rerunMargin = 1.3
)

// A PartInfo says how one part went.
type PartInfo struct {
	Name     string  `json:"name"`
	Seconds  float64 `json:"seconds"`
	StealPct float64 `json:"steal_pct"`
	// Taken just before the part, to compare parts that ran at different times.
	SHA256GBs float64 `json:"sha256_gbs"`
	FsyncPerS float64 `json:"fdatasync_append4k_per_s"`
	Rerun     bool    `json:"rerun,omitempty"`
	Err       string  `json:"err,omitempty"`
}

// Results are one run, or several that were pooled.
type Results struct {
	Date    string            `json:"date"`
	Seconds float64           `json:"seconds"`
	Scale   float64           `json:"scale"`
	Machine map[string]string `json:"machine"`
	Modules map[string]string `json:"modules"`
	Parts   []PartInfo        `json:"parts"`
	Rows    []*Row            `json:"rows"`
}

// Get is the median of a figure.
func (r *Results) Get(name string) (float64, bool) {
	i := slices.IndexFunc(r.Rows, func(w *Row) bool { return w.Name == name })
	if i < 0 {
		return 0, false
	}
	return r.Rows[i].Median, true
}

// A Runner runs parts within a budget of time.
type Runner struct {
	Dir       string // emptied after each part
	Bin       string
	Scale     float64
	Budget    time.Duration
	PartLimit time.Duration // of one part; stretched by Scale when that is above 1
	Log       io.Writer
}

// Run runs the parts one after the other. Those that lost much time to other guests, or
// failed, run once more while the budget lasts, and the quieter run counts.
func (r *Runner) Run(ctx context.Context, parts []Part) *Results {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.Budget)
	defer cancel()
	res := &Results{Date: began.UTC().Format(time.RFC3339), Scale: r.Scale, Machine: Machine(r.Dir)}
	rows := make([][]*Row, len(parts))
	for i, p := range parts {
		info := PartInfo{Name: p.Name, Err: "not run: the time was up"}
		if ctx.Err() == nil {
			info, rows[i] = r.one(ctx, p)
		}
		res.Parts = append(res.Parts, info)
	}
	for i, p := range parts {
		old := res.Parts[i]
		quiet := old.StealPct < noisySteal && old.Err == ""
		left := r.Budget - time.Since(began)
		if quiet || ctx.Err() != nil || time.Duration(old.Seconds*rerunMargin*float64(time.Second)) > left {
			continue
		}
		info, again := r.one(ctx, p)
		info.Rerun = true
		if info.Err == "" && (old.Err != "" || info.StealPct < old.StealPct) {
			res.Parts[i], rows[i] = info, again
		}
	}
	res.Rows = slices.Concat(rows...)
	res.Seconds = time.Since(began).Seconds()
	return res
}

// one runs one part, and lets the disk and this process's heap settle afterwards.
func (r *Runner) one(ctx context.Context, p Part) (PartInfo, []*Row) {
	e := &Env{Dir: r.Dir, Bin: r.Bin, Rec: NewRecorder(p.Name), Scale: r.Scale}
	info := PartInfo{Name: p.Name}
	info.SHA256GBs, info.FsyncPerS = Calibrate(r.Dir)
	fmt.Fprintf(r.Log, "== %s\n", p.Name)
	limited, cancel := context.WithTimeoutCause(ctx, time.Duration(float64(r.PartLimit)*max(r.Scale, 1)), fmt.Errorf("longer than its %v", r.PartLimit))
	defer cancel()
	total, steal := Jiffies()
	began := time.Now()
	err := p.Run(limited, e)
	info.Seconds = time.Since(began).Seconds()
	if t, s := Jiffies(); t > total {
		info.StealPct = 100 * float64(s-steal) / float64(t-total)
	}
	if err != nil {
		if cause := context.Cause(limited); cause != nil {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
		info.Err = err.Error()
		fmt.Fprintf(r.Log, "   %v\n", err)
	}
	if err := empty(r.Dir); err != nil {
		fmt.Fprintf(r.Log, "   what it left: %v\n", err)
	}
	debug.FreeOSMemory()
	syscall.Sync()
	return info, e.Rec.Rows()
}

// empty removes the directories in dir. Files stay: the certificates are for all parts.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Load reads the results of runs and pools their repetitions, figure by figure.
func Load(paths []string) (*Results, error) {
	var all *Results
	byPart := map[string]*Recorder{}
	var order []string
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var r Results
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for _, row := range r.Rows {
			rec := byPart[row.Part]
			if rec == nil {
				rec = NewRecorder(row.Part)
				byPart[row.Part] = rec
				order = append(order, row.Part)
			}
			for _, v := range row.Values {
				rec.Add(row.Name, row.Unit, v)
			}
			if row.Note != "" {
				rec.Note(row.Name, row.Note)
			}
		}
		if all == nil {
			all = &r
			continue
		}
		all.Date += ", " + r.Date
		all.Seconds += r.Seconds
		all.Parts = append(all.Parts, r.Parts...)
	}
	if all == nil {
		return nil, fmt.Errorf("no results were named")
	}
	all.Rows = nil
	for _, part := range order {
		all.Rows = append(all.Rows, byPart[part].Rows()...)
	}
	return all, nil
}

// Save writes the results as JSON.
func (r *Results) Save(path string) error {
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}
