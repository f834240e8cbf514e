package top

import (
	"context"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"coordinator/frames"
)

// A model is the screen. It is owned by the program's loop.
type model struct {
	opts *Options
	ctx  context.Context // ends with the screen
	busy *sync.WaitGroup // what the screen has begun

	data          data
	width, height int
	tab           tab
	cursor        [tabs]string // the id of the row under it
	at            [tabs]int    // where that was, for when it is gone
	top           [tabs]int    // the first line shown

	updates   uint64 // taken so far
	cached    []item // what list gives
	cachedFor listed

	filter    string
	filtering bool
	help      bool

	page    *page // nil: a table is shown
	confirm *Action
	sending map[frames.OperationID]Action
	unsure  map[frames.OperationID]Action // sent, and nobody knows what came of it
	last    *Action                       // the last of them that was answered so
	message []string
	failed  bool // message is of something that failed

	mu      sync.Mutex
	settled map[frames.OperationID]bool // guarded by mu: answered, whether the screen has seen it or not
}

func newModel(ctx context.Context, opts *Options) *model {
	return &model{opts: opts, ctx: ctx, busy: new(sync.WaitGroup), data: data{byID: map[string]any{}}, width: 80, height: 24,
		sending: map[frames.OperationID]Action{}, unsure: map[frames.OperationID]Action{}, settled: map[frames.OperationID]bool{}}
}

// now is the time that ages are told by: that of the last update.
func (m *model) now() time.Time {
	if m.data.state == nil {
		return time.Time{}
	}
	return m.data.state.ServerTime.Time
}

// Init implements [tea.Model].
func (m *model) Init() tea.Cmd { return nil }

// Update implements [tea.Model].
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case *update:
		m.data.take(msg)
		m.updates++
	case tea.KeyPressMsg:
		return m, m.key(msg)
	case tea.PasteMsg:
		if m.filtering {
			m.filter += plain(inert(msg.Content))
		}
	case panicked:
		panic(msg.what)
	case answered:
		m.answered(msg)
	case loaded:
		if m.page != nil && m.page.id == msg.id && m.page.load == msg.load {
			m.page.details, m.page.loading = &msg.details, false
		}
	}
	return m, nil
}

// do has f done beside the screen, which waits for it when it ends. A panic of f becomes one
// of the screen, which restores the terminal first.
func (m *model) do(f func() tea.Msg) tea.Cmd {
	done := make(chan tea.Msg, 1)
	m.busy.Go(func() {
		defer func() {
			if r := recover(); r != nil {
				done <- panicked{r}
			}
		}()
		done <- f()
	})
	return func() tea.Msg {
		select {
		case msg := <-done:
			return msg
		case <-m.ctx.Done():
			return nil
		}
	}
}

// panicked is a panic beside the screen.
type panicked struct{ what any }

// list is the items of the tab that is shown.
func (m *model) list() []item {
	if want := (listed{m.tab, m.filter, m.updates}); m.cachedFor != want || m.cached == nil {
		m.cached, m.cachedFor = m.items(m.tab), want
	}
	return m.cached
}

// listed is what a list was made of.
type listed struct {
	tab     tab
	filter  string
	updates uint64
}

// rows are the items of the tab that is shown, where the cursor is among them, and which of
// them is the first on a screen of n lines.
func (m *model) rows(n int) (items []item, cursor, first int) {
	items = m.list()
	if cursor = m.find(items); cursor < 0 {
		return items, cursor, 0
	}
	m.rest(items, cursor)
	first = min(m.top[m.tab], cursor, max(0, len(items)-n))
	first = max(first, cursor-n+1)
	if first > 0 && first == cursor && items[first-1].row == nil {
		first-- // with its heading
	}
	m.top[m.tab] = first
	return items, cursor, first
}

// rest leaves the cursor on a row, wherever that moves to. On the newest activity it stays with
// what is the newest.
func (m *model) rest(items []item, at int) {
	m.cursor[m.tab], m.at[m.tab] = items[at].id, at
	if m.tab == activityTab && at == 1 {
		m.cursor[m.tab] = ""
	}
}

// find is where the cursor is: on its row, or where that was when it is gone. -1: nowhere.
func (m *model) find(items []item) int {
	id, at := m.cursor[m.tab], m.at[m.tab]
	if id != "" && at < len(items) && items[at].id == id {
		return at
	}
	for i := range items {
		if id != "" && items[i].id == id {
			return i
		}
	}
	return nearest(items, min(at, len(items)-1))
}

// nearest is the row at i, or the next one, or the one before. -1: there is none.
func nearest(items []item, i int) int {
	for j := max(i, 0); j < len(items); j++ {
		if items[j].row != nil {
			return j
		}
	}
	for j := min(i, len(items)-1); j >= 0; j-- {
		if items[j].row != nil {
			return j
		}
	}
	return -1
}

// move moves the cursor by n rows.
func (m *model) move(n int) {
	if m.page != nil {
		m.page.top = max(0, m.page.top+n) // the screen holds it to what there is
		return
	}
	items := m.list()
	at, step := m.find(items), 1
	if n < 0 {
		step, n = -1, -n
	}
	for next := at + step; at >= 0 && n > 0 && next >= 0 && next < len(items); next += step {
		if items[next].row != nil {
			at = next
			n--
		}
	}
	if at >= 0 {
		m.rest(items, at)
	}
}

// selected is the row under the cursor, or the one whose page is open; nil when there is none.
func (m *model) selected() any {
	if m.page != nil {
		return m.data.byID[m.page.id]
	}
	items := m.list()
	if at := m.find(items); at >= 0 {
		return items[at].row
	}
	return nil
}
