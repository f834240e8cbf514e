package quota

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// small returns limits that a test reaches quickly.
func small() Limits {
	l := Defaults()
	for r := range resources {
		if r == PinnedBytes || r == UnsentBytes {
			continue
		}
		l[OfConnection][r], l[OfPrincipal][r], l[OfServer][r] = 2, 3, 5
	}
	l[OfConnection][Connections], l[OfConnection][Pending] = Unlimited, Unlimited
	return l
}

func TestDefaultsAreTheTable(t *testing.T) {
	l := Defaults()
	require.NoError(t, l.Validate())
	require.Equal(t, [resources]uint64{16, 512, 16, 32 << 20, 64, 4096, 16 << 20, 10_000}, l[OfPrincipal])
	require.Equal(t, [resources]uint64{256, 8192, 256, 512 << 20, 2048, 65_536, 256 << 20, 100_000}, l[OfServer])
	require.EqualValues(t, 128, l[OfConnection][Requests])
	require.EqualValues(t, 4, l[OfConnection][Leases])
	require.EqualValues(t, 16, l[OfConnection][Subscriptions])
}

func TestValidateRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		level Level
		r     Resource
		value uint64
	}{
		{"principal above server", OfPrincipal, Connections, 257},
		{"principal zero", OfPrincipal, Leases, 0},
		{"server zero", OfServer, Connections, 0},
		{"server beyond any use", OfServer, Connections, 1 << 40},
		{"connection above its hard cap", OfConnection, Requests, 257},
		{"leases above their hard cap", OfConnection, Leases, 9},
		{"a connection that may ask for nothing", OfConnection, Requests, 0},
		{"unsent bytes below one event", OfPrincipal, UnsentBytes, 256<<10 - 1},
		{"pinned bytes below one reservation", OfPrincipal, PinnedBytes, Reservation - 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := Defaults()
			l[tt.level][tt.r] = tt.value
			_, err := New(l)
			var le *LimitError
			require.ErrorAs(t, err, &le)
			require.Equal(t, tt.level, le.Level)
			require.Equal(t, tt.r, le.Resource)
			require.Contains(t, err.Error(), tt.r.String())
		})
	}
}

func TestTheRefusalNamesTheLevel(t *testing.T) {
	s, err := New(small())
	require.NoError(t, err)
	one, two := Principal{1}, Principal{2}
	a, err := s.Connect(one)
	require.NoError(t, err)
	b, err := s.Connect(one)
	require.NoError(t, err)
	take := func(a *Account) Level {
		for {
			if _, err := a.Take(Requests, 1); err != nil {
				var x *Exceeded
				require.True(t, errors.As(err, &x))
				require.Equal(t, Requests, x.Resource)
				return x.Level
			}
		}
	}
	require.Equal(t, OfConnection, take(a)) // two of the connection
	require.Equal(t, OfPrincipal, take(b))  // a third of the principal
	c, err := s.Connect(two)
	require.NoError(t, err)
	require.Equal(t, OfConnection, take(c)) // five of the server
	d, err := s.Connect(two)
	require.NoError(t, err)
	require.Equal(t, OfServer, take(d))
}

func TestCloseReturnsEverythingOnce(t *testing.T) {
	s, err := New(small())
	require.NoError(t, err)
	p := Principal{7}
	a, err := s.Connect(p)
	require.NoError(t, err)
	req, err := a.Take(Requests, 1)
	require.NoError(t, err)
	pin, err := a.Take(PinnedBytes, Reservation)
	require.NoError(t, err)
	require.NoError(t, pin.Extend(Step))
	require.EqualValues(t, Reservation+Step, pin.Amount())
	q := a.NewQueue()
	require.NoError(t, q.Push(2, 100))
	a.Close()
	req.Release()
	pin.Release()
	q.Clear()
	a.Close()
	require.Zero(t, s.total)
	require.Empty(t, s.principals)
	_, err = a.Take(Requests, 1)
	require.Error(t, err)
	require.Error(t, q.Push(1, 1))
}

func TestAQueueIsBoundedInBothUnits(t *testing.T) {
	l := small()
	l[OfConnection][UnsentBytes] = 1000
	s, err := New(l)
	require.NoError(t, err)
	a, err := s.Connect(Principal{1})
	require.NoError(t, err)
	q := a.NewQueue()
	var x *Exceeded
	require.ErrorAs(t, q.Push(1, 1001), &x)
	require.Equal(t, UnsentBytes, x.Resource)
	require.NoError(t, q.Push(2, 10))
	require.ErrorAs(t, q.Push(1, 10), &x)
	require.Equal(t, UnsentFrames, x.Resource)
	other := a.NewQueue()
	require.NoError(t, other.Push(1, 10)) // another queue has its own bound
	q.Pop(1, 5)
	require.NoError(t, q.Push(1, 10))
}

func TestReleasingTwiceIsHarmlessAndConcurrent(t *testing.T) {
	s, err := New(Defaults())
	require.NoError(t, err)
	a, err := s.Connect(Principal{1})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if c, err := a.Take(Requests, 1); err == nil {
					wg.Go(c.Release)
					c.Release()
				}
			}
		})
	}
	wg.Wait()
	p, all := s.Use(Principal{1}, Requests)
	require.Zero(t, p)
	require.Zero(t, all)
}

// TestAccountsMatchTheirModel drives random charges against the simplest model:
// a list of what is held. At every step the counters must equal its sums, no
// limit may be passed, and a refusal must be one that the model agrees with.
func TestAccountsMatchTheirModel(t *testing.T) {
	type held struct {
		c    *Charge
		conn int
		r    Resource
		n    uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		l := small()
		s, err := New(l)
		if err != nil {
			t.Fatal(err)
		}
		var conns []*Account
		open := map[int]bool{}
		var live []held
		sum := func(r Resource, keep func(conn int) bool) (n uint64) {
			for _, h := range live {
				if h.r == r && keep(h.conn) {
					n += h.n
				}
			}
			if r == Connections {
				for i := range open {
					if keep(i) {
						n++
					}
				}
			}
			return n
		}
		of := func(i int) Principal { return conns[i].principal }
		fits := func(p Principal, conn int, r Resource, n uint64) bool {
			mine := sum(r, func(c int) bool { return c == conn })
			principal := sum(r, func(c int) bool { return of(c) == p })
			all := sum(r, func(int) bool { return true })
			return n <= l[OfConnection][r]-mine && principal+n <= l[OfPrincipal][r] && all+n <= l[OfServer][r]
		}
		kinds := []Resource{Requests, Leases, Subscriptions}
		t.Repeat(map[string]func(*rapid.T){
			"connect": func(t *rapid.T) {
				p := Principal{byte(rapid.IntRange(1, 3).Draw(t, "principal"))}
				want := fits(p, -1, Connections, 1)
				a, err := s.Connect(p)
				if (err == nil) != want {
					t.Fatalf("Connect = %v, model says %v", err, want)
				}
				if err == nil {
					open[len(conns)] = true
					conns = append(conns, a)
				}
			},
			"take": func(t *rapid.T) {
				if len(conns) == 0 {
					t.Skip("no connection")
				}
				i := rapid.IntRange(0, len(conns)-1).Draw(t, "conn")
				r := rapid.SampledFrom(kinds).Draw(t, "resource")
				n := rapid.Uint64Range(1, 3).Draw(t, "n")
				want := open[i] && fits(of(i), i, r, n)
				c, err := conns[i].Take(r, n)
				if (err == nil) != want {
					t.Fatalf("Take(%v, %d) = %v, model says %v", r, n, err, want)
				}
				if err == nil {
					live = append(live, held{c, i, r, n})
				}
			},
			"release": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing held")
				}
				k := rapid.IntRange(0, len(live)-1).Draw(t, "charge")
				live[k].c.Release()
				live[k].c.Release()
				live = append(live[:k], live[k+1:]...)
			},
			"close": func(t *rapid.T) {
				if len(conns) == 0 {
					t.Skip("no connection")
				}
				i := rapid.IntRange(0, len(conns)-1).Draw(t, "conn")
				conns[i].Close()
				delete(open, i)
				kept := live[:0]
				for _, h := range live {
					if h.conn != i {
						kept = append(kept, h)
					}
				}
				live = kept
			},
			"": func(t *rapid.T) {
				for r := range resources {
					if got, want := s.total[r], sum(r, func(int) bool { return true }); got != want {
						t.Fatalf("server holds %d %v, model %d", got, r, want)
					}
					for p := byte(1); p <= 3; p++ {
						got, _ := s.Use(Principal{p}, r)
						if want := sum(r, func(c int) bool { return of(c) == Principal{p} }); got != want {
							t.Fatalf("principal %d holds %d %v, model %d", p, got, r, want)
						}
					}
				}
			},
		})
	})
}

func TestAChargeOfNothingLeavesNoEntry(t *testing.T) {
	s, err := New(Defaults())
	require.NoError(t, err)
	a, err := s.Connect(Principal{1})
	require.NoError(t, err)
	q := a.NewQueue()
	a.Close()
	q.Clear()
	require.Empty(t, s.principals)
	require.NoError(t, s.takeLocked(Principal{2}, new(counts), amount{Requests, 0}))
	require.Empty(t, s.principals)
}

// TestUsesAreWhatIsHeld lists the whole table for the server and, for a principal, what
// it holds and nothing else.
func TestUsesAreWhatIsHeld(t *testing.T) {
	s, err := New(Defaults())
	require.NoError(t, err)
	b, err := s.Connect(Principal{2})
	require.NoError(t, err)
	a, err := s.Connect(Principal{1})
	require.NoError(t, err)
	_, err = a.Take(Leases, 3)
	require.NoError(t, err)
	theirs := b.NewQueue()
	require.NoError(t, theirs.Push(2, 500))
	d := Defaults()
	held := map[Resource]uint64{Connections: 2, Leases: 3, UnsentFrames: 2, UnsentBytes: 500}
	var want []Use
	for _, r := range Resources() {
		if r != Pending {
			want = append(want, Use{r, OfServer, Principal{}, held[r], d[OfServer][r]})
		}
	}
	of := func(p Principal, r Resource, n uint64) Use { return Use{r, OfPrincipal, p, n, d[OfPrincipal][r]} }
	want = append(want,
		of(Principal{1}, Connections, 1), of(Principal{1}, Leases, 3),
		of(Principal{2}, Connections, 1), of(Principal{2}, UnsentFrames, 2), of(Principal{2}, UnsentBytes, 500))
	require.Equal(t, want, s.Uses())
	a.Close()
	b.Close()
	require.Len(t, s.Uses(), len(Resources())-1)
}

// TestTheLowestLevelRefusesFirst: nobody is asked to make room in an aggregate for what a
// queue may not hold anyway.
func TestTheLowestLevelRefusesFirst(t *testing.T) {
	l := Defaults()
	l[OfPrincipal][UnsentFrames] = 10
	s, err := New(l)
	require.NoError(t, err)
	a, err := s.Connect(Principal{1})
	require.NoError(t, err)
	defer a.Close()
	q := a.NewQueue()
	err = q.Push(11, l[OfConnection][UnsentBytes]+1)
	require.Equal(t, &Exceeded{Resource: UnsentBytes, Level: OfConnection, Limit: l[OfConnection][UnsentBytes]}, err)
}
