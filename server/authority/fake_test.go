package authority

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/witness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shifted is a clock whose halves can be moved apart, and which otherwise follows another.
type shifted struct {
	clock.Clock
	mu         sync.Mutex
	wall, boot time.Duration
}

func (s *shifted) Now() clock.Reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.Clock.Now()
	return clock.Reading{Wall: r.Wall.Add(s.wall), Boot: r.Boot + s.boot}
}

func (s *shifted) stepWall(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wall += d
}

// sleep moves both halves without firing a timer, as a stopped process experiences it.
func (s *shifted) sleep(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wall += d
	s.boot += d
}

// fakeWitness keeps one coordinator's lease by the rules of the witness link and misbehaves
// when told to.
type fakeWitness struct {
	clk clock.Clock

	mu         sync.Mutex
	epoch      frames.AuthorityEpoch
	activation frames.ActivationSequence
	expires    time.Duration // boot
	live       bool
	spent      int // relinquishments

	hang   bool // accept and never answer
	err    error
	delay  time.Duration               // before each answer of Activate
	change func(c *frames.Certificate) // of each certificate
	status func() (witness.Status, error)
	calls  map[string]int
}

func newFakeWitness(clk clock.Clock) *fakeWitness {
	return &fakeWitness{clk: clk, calls: map[string]int{}}
}

var _ witness.Authority = (*fakeWitness)(nil)

func (f *fakeWitness) set(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
}

func (f *fakeWitness) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[name]
}

// begin counts a call and plays the faults that come before an answer.
func (f *fakeWitness) begin(ctx context.Context, name string) error {
	f.mu.Lock()
	f.calls[name]++
	hang, err := f.hang, f.err
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (f *fakeWitness) certificate(inc frames.IncarnationID, length time.Duration) frames.Certificate {
	issued := uint64(f.clk.Now().Wall.Unix())
	c := frames.Certificate{
		WitnessID: frames.WitnessID{1}, CoordinatorID: testCoordinator, Activation: f.activation, Epoch: f.epoch,
		IncarnationID: inc, Token: [32]byte{byte(f.activation)}, WitnessKeyID: [32]byte{5},
		IssuedAt: issued, ExpiresAt: issued + uint64(length/time.Second),
	}
	if f.change != nil {
		f.change(&c)
	}
	return c
}

func (f *fakeWitness) Activate(ctx context.Context, epoch frames.AuthorityEpoch, inc frames.IncarnationID, secs uint16) (frames.Certificate, error) {
	if err := f.begin(ctx, "activate"); err != nil {
		return frames.Certificate{}, err
	}
	f.mu.Lock()
	delay := f.delay
	f.mu.Unlock()
	if delay > 0 {
		if err := sleep(ctx, f.clk, delay); err != nil {
			return frames.Certificate{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clk.Now().Boot
	if epoch <= f.epoch {
		return frames.Certificate{}, &witness.RefusedError{Code: frames.CodeStaleAuthority}
	}
	if f.live && now < f.expires {
		return frames.Certificate{}, &witness.RefusedError{Code: frames.CodeResourceExhausted}
	}
	length := time.Duration(secs) * time.Second
	f.epoch, f.activation, f.live, f.expires = epoch, f.activation+1, true, now+length
	return f.certificate(inc, length), nil
}

func (f *fakeWitness) Renew(ctx context.Context, cur frames.Certificate, secs uint16) (frames.Certificate, error) {
	if err := f.begin(ctx, "renew"); err != nil {
		return frames.Certificate{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clk.Now().Boot
	if cur.Epoch != f.epoch || cur.Activation != f.activation || !f.live || now >= f.expires {
		return frames.Certificate{}, &witness.RefusedError{Code: frames.CodeStaleAuthority}
	}
	length := time.Duration(secs) * time.Second
	f.expires = max(f.expires, now+length)
	return f.certificate(cur.IncarnationID, length), nil
}

func (f *fakeWitness) Relinquish(ctx context.Context, cur frames.Certificate) error {
	if err := f.begin(ctx, "relinquish"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if cur.Activation != f.activation {
		return &witness.RefusedError{Code: frames.CodeStaleAuthority}
	}
	f.live = false
	f.spent++
	return nil
}

func (f *fakeWitness) Status(ctx context.Context) (witness.Status, error) {
	if err := f.begin(ctx, "status"); err != nil {
		return witness.Status{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.status != nil {
		return f.status()
	}
	s := witness.Status{LastEpoch: f.epoch, Activation: f.activation}
	if now := f.clk.Now().Boot; f.live && now < f.expires {
		s.LeaseRemaining = (f.expires - now + time.Second - 1).Truncate(time.Second)
	}
	return s, nil
}

var errNetwork = errors.New("connection refused")

// goodLock is a store lock that is held until told otherwise.
type goodLock struct {
	mu  sync.Mutex
	err error
}

func (l *goodLock) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *goodLock) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = errors.New("inode differs")
}
