package daemon

import (
	"os"
	"runtime"
	"sync"
	"time"
)

const (
	// procsLook is over how much time commits are looked at together.
	procsLook = 100 * time.Millisecond
	// procsRest is how long after the last look that found a load there is one processor less.
	procsRest = time.Second
	// crowd is how many commands a commit has under load, on the average of a look.
	crowd = 4
)

// Procs lets one goroutine more run at a time while commits are made for many at once. Under
// load one is nearly always in a flush or a write, and the runtime takes the place that it holds
// from it only after a while, which leaves a core idle. For a few commands at a time one more
// would but search for work and wake others for nothing.
type Procs struct {
	more, usual func() // set the number; both stop the world for a moment

	mu      sync.Mutex
	began   time.Time   // guarded by mu: of this look
	commits int         // guarded by mu: seen in it
	items   int         // guarded by mu: in those
	raised  bool        // guarded by mu
	stopped bool        // guarded by mu
	rest    *time.Timer // guarded by mu
}

// TendProcs begins to tend the number of this process, until it is stopped. It does nothing
// when GOMAXPROCS says what is wanted.
func TendProcs() *Procs {
	if os.Getenv("GOMAXPROCS") != "" {
		return &Procs{stopped: true}
	}
	return tendProcs(func() { runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1) }, runtime.SetDefaultGOMAXPROCS)
}

func tendProcs(more, usual func()) *Procs {
	p := &Procs{more: more, usual: usual, began: time.Now()}
	p.rest = time.AfterFunc(procsRest, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.set(false)
	})
	p.rest.Stop()
	return p
}

// Commit tells of a commit of so many commands. It does not wait.
func (p *Procs) Commit(items int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.commits++
	p.items += items
	now := time.Now()
	if now.Sub(p.began) < procsLook {
		return
	}
	busy := p.items >= crowd*p.commits
	p.began, p.commits, p.items = now, 0, 0
	if busy {
		p.rest.Reset(procsRest)
		p.set(true)
	}
}

// Stop leaves the number as the runtime would have it.
func (p *Procs) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.rest.Stop()
		p.set(false)
		p.stopped = true
	}
}

// set raises the number, or takes it back. The caller holds mu.
func (p *Procs) set(raised bool) {
	if p.stopped || raised == p.raised {
		return
	}
	p.raised = raised
	if raised {
		p.more()
	} else {
		p.usual()
	}
}
