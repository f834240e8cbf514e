package owner

import (
	"errors"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/internal/failpoint"
)

const (
	// flushAfter is how long output may wait to be recorded. With the sync it stays within the
	// 250 ms of links.md.
	flushAfter = 200 * time.Millisecond
	// readBytes is how much is read of a terminal at once.
	readBytes = 32 << 10
)

// A binding is one process of this incarnation, from its start until CLOSED is recorded.
type binding struct {
	o     *Owner
	id    frames.BindingID
	child child
	out   *output
	grace time.Duration
	log   *slog.Logger

	unstored bool // owned by record: that output is no longer stored was said

	wake    chan struct{} // one slot: output came
	full    chan struct{} // one slot: a range is complete
	drained chan struct{} // closed when the terminal has ended
	killed  chan struct{} // one slot: SIGTERM is sent, SIGKILL is due after grace

	killAt   *alarm          // owned by run; SIGKILL is due
	stopping <-chan struct{} // closed when the owner stops: the process is ended then
}

func (o *Owner) newBinding(id frames.BindingID, c child, out *output, grace time.Duration) *binding {
	return &binding{
		o: o, id: id, child: c, out: out, grace: grace, log: o.log.With("binding", id.String()),
		wake: make(chan struct{}, 1), full: make(chan struct{}, 1), drained: make(chan struct{}),
		killed: make(chan struct{}, 1), killAt: newAlarm(o.opt.Clock), stopping: o.stopping,
	}
}

// notify fills a slot.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// kill sends SIGTERM to the group, with SIGKILL to follow after grace. errNoProcess says that
// it was too late.
func (b *binding) kill() error {
	notify(b.killed) // before the signal, whose effect may end run's wait for this
	err := b.child.signal(syscall.SIGTERM)
	if err == nil {
		b.child.signal(syscall.SIGCONT) //nolint:errcheck // a stopped process acts on SIGTERM only then
	}
	return err
}

// run follows the process to its end and returns when CLOSED is durable, or the journal failed.
func (b *binding) run() {
	var wg sync.WaitGroup
	wg.Go(b.pump)
	recorded := make(chan error, 1)
	wg.Go(func() { recorded <- b.record() })
	exited := make(chan frames.Closed, 1)
	wg.Go(func() { exited <- b.child.wait() })

	status, held := b.follow(exited)
	b.child.cut()
	<-b.drained
	b.child.hangup()
	b.o.leavePlace()  // before anybody can know of the end and ask for another process
	err := <-recorded // all output before the end
	if err == nil {
		failpoint.Hit("owner-exited")
		facts := []factRow{}
		if held {
			facts = append(facts, fact(frames.FactAttention, &frames.Attention{Kind: frames.AttentionFailed}))
		}
		facts = append(facts, fact(frames.FactClosed, &status))
		err = b.o.recordFacts(b.id, facts, 0, true)
	}
	wg.Wait()
	if ferr := b.out.finish(); ferr != nil {
		b.log.Warn("output file could not be closed", "cause", ferr)
	}
	if err != nil {
		b.log.Error("facts could not be recorded", "cause", err)
		return
	}
	b.o.meters.Ended.Add(1)
	b.log.Info("process ended", "status", status.Status, "known", status.Known, "hung_up", held)
	b.finishKill()
}

// leavePlace counts a process less.
func (o *Owner) leavePlace() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.places--
}

// finishKill waits, after a KILL, for what is left of the group without a terminal.
func (b *binding) finishKill() {
	defer b.killAt.stop()
	select {
	case <-b.killed:
		b.killSoon(b.grace)
	default:
	}
	if b.killAt.t == nil || b.child.signal(0) != nil {
		return
	}
	select {
	case <-b.killAt.C():
	case <-b.stopping:
	}
	b.child.signal(syscall.SIGKILL) //nolint:errcheck // nobody is left then
}

// killSoon sets the time of SIGKILL; a second KILL does not put the first one off.
func (b *binding) killSoon(grace time.Duration) {
	if b.killAt.t == nil {
		b.killAt.set(grace)
	}
}

// follow waits for the exit, then for the terminal's end, or until a descendant has held it
// open for grace.
func (b *binding) follow(exited <-chan frames.Closed) (status frames.Closed, held bool) {
	drainAt := newAlarm(b.o.opt.Clock)
	defer drainAt.stop()
	grace, stopping, drained := b.grace, b.stopping, b.drained
	for exited != nil || drained != nil {
		select {
		case <-b.killed:
			b.killSoon(grace)
		case <-b.killAt.C():
			b.child.signal(syscall.SIGKILL) //nolint:errcheck // nobody is left then
		case <-stopping:
			stopping, grace = nil, min(grace, stopGrace)
			if exited != nil {
				b.kill() //nolint:errcheck // nobody is left then
				b.killAt.set(grace)
			} else {
				drainAt.set(grace)
			}
		case status = <-exited:
			exited = nil
			drainAt.set(grace)
		case <-drained:
			drained, held = nil, false
		case <-drainAt.C():
			// Twice in a row, since a process that has just been made by somebody else in this
			// program may have it for a moment. When nobody has it, what is left has an end, and
			// only this side is slow.
			again := held
			if held = b.child.held(); held && again {
				return status, true
			}
			drainAt.set(flushAfter)
		}
	}
	return status, false
}

// pump reads the terminal to its end.
func (b *binding) pump() {
	defer close(b.drained)
	buf := make([]byte, readBytes)
	for {
		n, err := b.child.Read(buf)
		if n > 0 {
			if b.out.write(buf[:n]) {
				notify(b.full)
			}
			notify(b.wake)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				b.log.Error("terminal could not be read to its end", "cause", err)
			}
			return
		}
	}
}

// record makes the output's facts durable: once a range is complete, or some time after the
// first byte that is not covered. It returns after the last of them.
func (b *binding) record() error {
	t := newAlarm(b.o.opt.Clock)
	defer t.stop()
	for {
		select {
		case <-b.drained:
			return b.flush()
		case <-b.wake:
		}
		t.set(flushAfter)
		select {
		case <-b.drained:
		case <-b.full:
		case <-t.C():
		}
		if err := b.flush(); err != nil {
			b.discard() // the pump must not wait for room that nobody makes
			return err
		}
	}
}

// discard takes ranges until the terminal has ended.
func (b *binding) discard() {
	for {
		b.out.take()
		select {
		case <-b.drained:
			return
		case <-b.wake:
		}
	}
}

func (b *binding) flush() error {
	ranges, rang := b.out.take()
	if len(ranges) == 0 {
		return nil
	}
	if err := b.out.sync(); err != nil && !b.unstored {
		b.unstored = true
		b.o.meters.Unstored.Add(1)
		b.log.Warn("output is no longer stored", "cause", err)
	}
	facts := make([]factRow, 0, len(ranges)+1)
	var n uint64
	for i := range ranges {
		n += ranges[i].ByteCount
		facts = append(facts, fact(frames.FactOutputRange, &ranges[i]))
	}
	if rang {
		facts = append(facts, fact(frames.FactAttention, &frames.Attention{Kind: frames.AttentionBell}))
	}
	if err := b.o.recordFacts(b.id, facts, n, false); err != nil {
		return err
	}
	b.o.meters.Output.Add(n)
	return nil
}

// fact makes a row of a payload, which is always of good form.
func fact(kind frames.SourceFactKind, payload codec.Value) factRow {
	raw, err := codec.EncodeImage(nil, payload)
	if err != nil {
		panic("owner: a fact does not encode: " + err.Error())
	}
	return factRow{Kind: kind, Payload: raw}
}

// An alarm is a timer that is not running until it is set.
type alarm struct {
	clk clock.Clock
	t   clock.Timer
}

func newAlarm(clk clock.Clock) *alarm { return &alarm{clk: clk} }

// C never delivers before set.
func (a *alarm) C() <-chan time.Time {
	if a.t == nil {
		return nil
	}
	return a.t.C()
}

func (a *alarm) set(d time.Duration) {
	if a.t == nil {
		a.t = a.clk.NewTimer(d)
		return
	}
	a.t.Reset(d)
}

func (a *alarm) stop() {
	if a.t != nil {
		a.t.Stop()
	}
}
