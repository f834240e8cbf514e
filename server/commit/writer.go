package commit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/authority"
	"coordinator/server/store"
	"coordinator/server/work"
)

// A Writer is the one goroutine that changes the store. Its methods may be called from any
// goroutine, except that Run and Step exclude each other.
type Writer struct {
	o     Options
	began clock.Reading
	rand  *bufio.Reader // owned by the stepping goroutine
	wake  chan struct{} // one slot: something was queued

	mu          sync.Mutex
	queue       []*item // guarded by mu
	stale       []*item // guarded by mu: to be prefetched again
	wide        *item   // guarded by mu: the one that may hold many rows
	staleWake   chan struct{}
	calls       []*call // guarded by mu
	outstanding int     // guarded by mu: proposals not yet answered
	closed      bool    // guarded by mu: nothing new is taken
	fetching    bool    // guarded by mu: Run has its reader goroutine
	// proposed counts the outstanding by principal, without zeros: a connection that has ended
	// leaves its proposals behind, and the next one must not add to them without a bound.
	// Guarded by mu.
	proposed map[frames.KeyID]int

	meters *Meters

	pending pending // owned by the stepping goroutine

	// Owned by the stepping goroutine. Of room and look a decision is made, with the two
	// functions, which are values here because to make one takes memory.
	room      work.Room
	look      view
	drawID    func() (frames.EventID, error)
	pendingOf func(frames.KeyID) (own, all uint64)

	held   []*item // taken and not decided
	open   *round  // decided and not launched
	flying *round  // launched, and not known to be durable
	landed *round  // durable and not out

	flights chan *store.Flight // to the flusher; nil unless Run has one
	flown   chan error         // from it, for each
}

// An item is a proposal or an amendment in the queue.
type item struct {
	proposal  *Proposal
	amendment *Amendment
	done      func(frames.OperationResult, error)
	needs     needs
	size      int
	events    int
	loaded    *store.Loaded
}

// New returns a writer that does nothing until Run or Step.
func New(o Options) *Writer {
	if o.QueueLimit == 0 {
		o.QueueLimit = DefaultQueueLimit
	}
	if o.QueueLimitEach == 0 {
		o.QueueLimitEach = o.QueueLimit
	}
	if o.MaxPending == 0 {
		o.MaxPending = defaultMaxPending
	}
	if o.MaxPendingAll == 0 {
		o.MaxPendingAll = defaultMaxPendingAll
	}
	if o.Publish == nil {
		o.Publish = func(store.Batch) {}
	}
	if o.Round == nil {
		o.Round = func(int) {}
	}
	if o.LowDisk == nil {
		o.LowDisk = func() bool { return false }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Writer{
		o:         o,
		meters:    newMeters(),
		began:     o.Clock.Now(),
		rand:      bufio.NewReaderSize(o.Rand, 4096),
		wake:      make(chan struct{}, 1),
		staleWake: make(chan struct{}, 1),
		proposed:  make(map[frames.KeyID]int),
	}
	w.drawID, w.pendingOf = w.newEventID, w.pending.count
	return w
}

// Propose prefetches what p may read, on the caller's goroutine, and queues it. It never
// waits for the writer. Its error is a *work.Refusal: RESOURCE_EXHAUSTED when the queue is
// full, AUTHORITY_FENCED once the writer stops, INTERNAL when a read failed; p.Reply is then
// not called.
func (w *Writer) Propose(p *Proposal) error {
	return w.propose(&item{
		proposal: p, done: p.Done, needs: needs{refs: p.Command.Refs()},
		size: p.Command.Size(), events: p.Command.Events(),
	})
}

func (w *Writer) propose(it *item) error {
	if err := w.reserve(it); err != nil {
		return err
	}
	err := w.prefetch(it)
	if err == nil {
		err = w.enqueue(it)
	}
	if err != nil {
		w.release(it)
	}
	return err
}

// reserve charges one place of the queue. The server's own changes, whose callers bound them,
// take none: neither do requests keep them out nor they requests.
func (w *Writer) reserve(it *item) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return ErrStopped
	case it.amendment != nil:
		return nil
	case w.outstanding >= w.o.QueueLimit:
		return frames.Refuse(frames.CodeResourceExhausted, "the server has %d requests outstanding", w.outstanding)
	}
	from := it.proposal.Command.From.Principal
	if n := w.proposed[from]; n >= w.o.QueueLimitEach {
		return frames.Refuse(frames.CodeResourceExhausted, "the principal has %d requests outstanding", n)
	}
	w.outstanding++
	w.proposed[from]++
	return nil
}

func (w *Writer) release(it *item) {
	if it.amendment != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outstanding--
	from := it.proposal.Command.From.Principal
	if w.proposed[from]--; w.proposed[from] == 0 {
		delete(w.proposed, from)
	}
}

// prefetch reads what it may need from the store's files.
func (w *Writer) prefetch(it *item) error {
	loaded, err := w.o.Store.PrefetchHeads(it.needs.refs, it.needs.heads)
	if err != nil {
		w.o.Logger.Error("prefetch failed", "err", err)
		return frames.Refuse(frames.CodeInternal, "the store could not be read; the command was not carried out")
	}
	it.loaded = loaded
	return nil
}

// enqueue puts a prefetched item where the writer finds it.
func (w *Writer) enqueue(it *item) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return ErrStopped
	}
	w.queue = append(w.queue, it)
	signal(w.wake)
	return nil
}

// signal fills a one-slot channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run commits what is proposed until ctx is cancelled, the fence closes or a commit fails.
// When ctx is cancelled it takes nothing new, commits what is queued as long as the fence
// holds, refuses the rest and returns nil. Otherwise its error matches authority.ErrFenced
// or store.ErrOutcomeUnknown, or is what else ended the store, such as the
// *store.CorruptError that a prefetch or a checkpoint met; whatever has no durable,
// published result is refused or left unanswered. Run returns with no goroutine left
// behind.
func (w *Writer) Run(ctx context.Context) error {
	w.mu.Lock()
	w.fetching = true
	w.mu.Unlock()
	fetchCtx, stopFetch := context.WithCancel(context.Background())
	var helpers sync.WaitGroup
	helpers.Go(func() { w.refetchLoop(fetchCtx) })
	w.flights, w.flown = make(chan *store.Flight, 1), make(chan error, 1)
	helpers.Go(w.flush)

	err := w.loop(ctx)
	w.close()
	if err == nil {
		err = w.drain()
	}
	stopFetch()
	close(w.flights)
	helpers.Wait()
	if err == nil || errors.Is(err, store.ErrFailed) {
		err = w.storeFault()
	}
	w.refuseRest(err)
	return err
}

// storeFault is what ended the store, whoever met it, and not only that it has ended. Nil
// while it is whole.
func (w *Writer) storeFault() error {
	if err := w.o.Store.Err(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// loop steps until there is a reason to stop.
func (w *Writer) loop(ctx context.Context) error {
	for {
		if err := w.storeFault(); err != nil {
			return err // reads alone would go on for ever
		}
		changed := w.o.Fence.Changed()
		worked, err := w.step(true)
		wake := w.wake
		switch {
		case errors.Is(err, authority.ErrDiverged):
			wake = nil // only a renewal, or the end of the fence, helps
		case err != nil:
			return err
		case worked && ctx.Err() == nil:
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.o.Store.Done(): // a read or a checkpoint met a failure
			return w.storeFault()
		case <-changed:
			if err := w.o.Fence.Check(); errors.Is(err, authority.ErrFenced) {
				return err
			}
		case <-w.o.Store.Written():
			w.o.Store.Maintain() // the next commit may be far away
		case <-wake:
		}
	}
}

// drain makes the last commits of a stop. Diverged clocks end it: there is no time to wait
// for a renewal.
func (w *Writer) drain() error {
	for {
		worked, err := w.Step()
		if errors.Is(err, authority.ErrDiverged) {
			return nil
		}
		if err != nil || !worked {
			return err
		}
	}
}

// close takes nothing new from here on.
func (w *Writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

// refuseRest answers everything that is still here when Run ends for the reason err.
func (w *Writer) refuseRest(err error) {
	if err == nil {
		err = authority.ErrDiverged // the only reason for which a stop leaves a round behind
	}
	for _, r := range []*round{w.landed, w.flying} {
		if r != nil {
			w.abandon(r, err)
		}
	}
	w.landed, w.flying = nil, nil
	w.forget()
	w.mu.Lock()
	items := append(append(w.held, w.queue...), w.stale...)
	calls := w.calls
	w.queue, w.stale, w.calls, w.held = nil, nil, nil, nil
	w.mu.Unlock()
	for _, it := range items {
		w.reply(it, reply{err: ErrStopped})
	}
	for _, c := range calls {
		c.refuse(ErrStopped)
	}
}

// A reply is how an item ends.
type reply struct {
	result frames.OperationResult
	err    error
}

// reply frees the place of it and answers.
func (w *Writer) reply(it *item, r reply) {
	w.release(it)
	w.narrow(it)
	it.done(r.result, r.err)
}

// Step serves the calls that wait and commits at most one batch, all on the caller's
// goroutine. It reports whether it did anything. While the clocks have diverged it returns
// authority.ErrDiverged, keeps everything, and goes on where it was when it is called
// again; every other error is final. Run is a loop around it; a simulation calls it alone.
func (w *Writer) Step() (worked bool, err error) { return w.step(false) }

// StepAhead is Step that leaves its batch in the air, as Run does: applied, but neither durable
// nor out. The next step decides what waits by then and lands it.
func (w *Writer) StepAhead() (worked bool, err error) { return w.step(true) }

// waits reports whether anything has not been decided.
func (w *Writer) waits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held)+len(w.queue) > 0
}

// take gives the next batch of at most room items, or of all that were held back: those, and
// then what waits.
func (w *Writer) take(room int) []*item {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch := w.held
	w.held = nil
	n := min(max(room-len(batch), 0), len(w.queue))
	batch = append(batch, w.queue[:n]...)
	rest := copy(w.queue, w.queue[n:])
	clear(w.queue[rest:])
	w.queue = w.queue[:rest]
	return batch
}

// refetchLoop prefetches stale items again, so that the writer reads no file.
func (w *Writer) refetchLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.staleWake:
		}
		w.refetch()
	}
}

// takeStale gives the items to prefetch. Of those that need very many rows one has them at a
// time; the others wait for its end.
func (w *Writer) takeStale() []*item {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ready, waiting []*item
	for _, it := range w.stale {
		if it.needs.wide() {
			if w.wide == nil {
				w.wide = it
			}
			if w.wide != it {
				waiting = append(waiting, it)
				continue
			}
		}
		ready = append(ready, it)
	}
	w.stale = waiting
	return ready
}

// narrow lets the next item that needs very many rows have them.
func (w *Writer) narrow(it *item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wide != it {
		return
	}
	if w.wide = nil; len(w.stale) > 0 {
		signal(w.staleWake)
		signal(w.wake) // for Step alone, which reads by itself
	}
}

// refetchInline does the same in a simulation, which has no such goroutine. It reports
// whether this is one.
func (w *Writer) refetchInline() bool {
	w.mu.Lock()
	fetching := w.fetching
	w.mu.Unlock()
	if !fetching {
		w.refetch()
	}
	return !fetching
}

func (w *Writer) refetch() {
	for _, it := range w.takeStale() {
		err := w.prefetch(it)
		if err == nil {
			err = w.enqueue(it)
		}
		if err != nil {
			w.reply(it, reply{err: err})
		}
	}
}
