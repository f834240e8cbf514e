package witness

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"

	"pgregory.net/rapid"
)

// modelLease is what the rules of links.md keep of one coordinator, in the plainest form: the
// end of the lease is an instant of true time, which no clock step and no reboot can bend.
type modelLease struct {
	cert   frames.Certificate
	holder frames.KeyID
	end    time.Duration // true time at which the witness may grant again
	length time.Duration
	spent  bool
}

// promise is what a certificate lets its holder believe: nobody else before this instant.
type promise struct {
	activation frames.ActivationSequence
	until      time.Duration // true time
}

// witnessModel drives a Witness and its model side by side.
type witnessModel struct {
	root     string
	dirs     int
	dir      string
	w        *Witness
	clk      *clock.Manual
	boot     int
	elapsed  time.Duration // true time, the sum of all advances
	leases   map[frames.CoordinatorID]*modelLease
	promises map[frames.CoordinatorID][]promise
}

func (m *witnessModel) newDir(t *rapid.T) string {
	m.dirs++
	dir := filepath.Join(m.root, fmt.Sprint(m.dirs))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (m *witnessModel) open(t *rapid.T) {
	w, err := Open(m.dir, options(m.clk, fmt.Sprint("boot-", m.boot)))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	m.w = w
}

func (m *witnessModel) close(t *rapid.T) {
	if err := m.w.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func (m *witnessModel) live(l *modelLease) bool { return l != nil && !l.spent && m.elapsed < l.end }

func drawCoordinator(t *rapid.T) frames.CoordinatorID {
	return rapid.SampledFrom([]frames.CoordinatorID{coordA, coordB}).Draw(t, "coordinator")
}

func drawHolder(t *rapid.T) frames.KeyID {
	return rapid.SampledFrom([]frames.KeyID{holderA, holderB}).Draw(t, "holder")
}

func drawSecs(t *rapid.T) uint16 { return rapid.Uint16Range(1, MaxLeaseSecs).Draw(t, "secs") }

// granted checks a certificate and notes what it promises.
func (m *witnessModel) granted(t *rapid.T, c frames.CoordinatorID, cert frames.Certificate) {
	if err := handshake.VerifyCertificate(&cert, pinsFor(c), m.clk.Now().Unix()); err != nil {
		t.Fatalf("certificate: %v", err)
	}
	length := time.Duration(cert.ExpiresAt-cert.IssuedAt) * time.Second
	for _, p := range m.promises[c] {
		if p.activation != cert.Activation && m.elapsed < p.until {
			t.Fatalf("activation %d was granted %v before a certificate of activation %d runs out", cert.Activation, p.until-m.elapsed, p.activation)
		}
	}
	m.promises[c] = append(m.promises[c], promise{cert.Activation, m.elapsed + length})
}

func (m *witnessModel) activate(t *rapid.T) {
	c, holder, secs := drawCoordinator(t), drawHolder(t), drawSecs(t)
	l := m.leases[c]
	var last frames.AuthorityEpoch
	var seq frames.ActivationSequence
	if l != nil {
		last, seq = l.cert.Epoch, l.cert.Activation
	}
	epoch := last + frames.AuthorityEpoch(rapid.IntRange(0, 2).Draw(t, "step"))
	inc := frames.IncarnationID{0: 9, 1: byte(rapid.IntRange(0, 255).Draw(t, "inc"))}
	cert, err := m.w.Activate(holder, c, epoch, inc, secs)
	switch {
	case epoch <= last:
		wantCode(t, frames.CodeStaleAuthority, err)
	case m.live(l):
		wantCode(t, frames.CodeResourceExhausted, err)
	case err != nil:
		t.Fatalf("activate at %d over %d: %v", epoch, last, err)
	default:
		if cert.Epoch != epoch || cert.Activation != seq+1 || cert.IncarnationID != inc {
			t.Fatalf("activate at %d after activation %d gave %d/%d", epoch, seq, cert.Epoch, cert.Activation)
		}
		m.granted(t, c, cert)
		length := time.Duration(secs) * time.Second
		m.leases[c] = &modelLease{cert: cert, holder: holder, end: m.elapsed + length, length: length}
	}
}

func (m *witnessModel) renew(t *rapid.T) {
	c, secs := drawCoordinator(t), drawSecs(t)
	l := m.leases[c]
	if l == nil {
		_, err := m.w.Renew(c, 1, 1, incA, [32]byte{1}, secs)
		wantCode(t, frames.CodeStaleAuthority, err)
		return
	}
	ask, wrong := l.cert, rapid.IntRange(0, 8).Draw(t, "wrong")
	switch wrong {
	case 1:
		ask.Epoch++
	case 2:
		ask.Activation++
	case 3:
		ask.IncarnationID[15] ^= 1
	case 4:
		ask.Token[0] ^= 1
	default:
		wrong = 0
	}
	cert, err := m.w.Renew(c, ask.Epoch, ask.Activation, ask.IncarnationID, ask.Token, secs)
	if wrong != 0 || !m.live(l) {
		wantCode(t, frames.CodeStaleAuthority, err)
		return
	}
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	m.granted(t, c, cert)
	l.end = max(l.end, m.elapsed+time.Duration(secs)*time.Second)
	l.length = l.end - m.elapsed
	if got := time.Duration(cert.ExpiresAt-cert.IssuedAt) * time.Second; got != l.length.Truncate(time.Second) {
		t.Fatalf("renewed for %v, %v are left", got, l.length)
	}
}

func (m *witnessModel) relinquish(t *rapid.T) {
	c, holder := drawCoordinator(t), drawHolder(t)
	l := m.leases[c]
	if l == nil {
		wantCode(t, frames.CodeStaleAuthority, m.w.Relinquish(holder, c, [32]byte{1}, incA))
		return
	}
	token, inc := l.cert.Token, l.cert.IncarnationID
	wrong := rapid.IntRange(0, 3).Draw(t, "wrong")
	switch wrong {
	case 1:
		token[5] ^= 1
	case 2:
		inc[5] ^= 1
	default:
		wrong = 0
	}
	err := m.w.Relinquish(holder, c, token, inc)
	if wrong != 0 || holder != l.holder {
		wantCode(t, frames.CodeStaleAuthority, err)
		return
	}
	if err != nil {
		t.Fatalf("relinquish: %v", err)
	}
	l.spent = true
	m.promises[c] = nil // the holder gave them back
}

// check compares what the witness says with the model; it runs after every action.
func (m *witnessModel) check(t *rapid.T) {
	for _, c := range []frames.CoordinatorID{coordA, coordB} {
		s, err := m.w.Status(c)
		if err != nil {
			t.Fatalf("status: %v", err)
		}
		var want Status
		if l := m.leases[c]; l != nil {
			want = Status{LastEpoch: l.cert.Epoch, Activation: l.cert.Activation}
			if m.live(l) {
				want.LeaseRemaining = time.Duration(roundUp(l.end-m.elapsed)) * time.Second
			}
		}
		if s != want {
			t.Fatalf("status %+v, want %+v", s, want)
		}
	}
}

func (m *witnessModel) reboot(t *rapid.T) {
	m.close(t)
	m.boot++
	off := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "off"))
	m.elapsed += off
	m.clk = clock.NewManual(clock.Reading{
		Wall: time.Unix(rapid.Int64Range(1_000_000_000, 2_000_000_000).Draw(t, "wall"), 0),
		Boot: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "boot")),
	})
	m.open(t)
	for _, l := range m.leases { // an unspent lease counts in full from this start
		l.end = m.elapsed + l.length
	}
}

// TestC05_Model runs random histories of grants, clock steps, restarts, crashes and reboots
// against the plain rules, and holds every certificate against all that went before it.
func TestC05_Model(t *testing.T) {
	root := t.TempDir()
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		m := &witnessModel{
			root: filepath.Join(root, fmt.Sprint(runs)), clk: startClock(),
			leases: map[frames.CoordinatorID]*modelLease{}, promises: map[frames.CoordinatorID][]promise{},
		}
		if err := os.Mkdir(m.root, 0o700); err != nil {
			t.Fatal(err)
		}
		m.dir = m.newDir(t)
		if err := Create(m.dir, testWitness); err != nil {
			t.Fatal(err)
		}
		m.open(t)
		defer func() { m.w.Close(); os.RemoveAll(m.root) }()
		t.Repeat(map[string]func(*rapid.T){
			"":           m.check,
			"activate":   m.activate,
			"activate2":  m.activate, // twice as often as the rest
			"renew":      m.renew,
			"relinquish": m.relinquish,
			"advance": func(t *rapid.T) {
				d := time.Duration(rapid.Int64Range(0, int64(25*time.Second)).Draw(t, "by"))
				m.clk.Advance(d)
				m.elapsed += d
			},
			"wall": func(t *rapid.T) {
				m.clk.StepWall(time.Duration(rapid.Int64Range(-1000, 1000).Draw(t, "hours")) * time.Hour)
			},
			"restart": func(t *rapid.T) { m.close(t); m.open(t) },
			"crash": func(t *rapid.T) { // what is on disk now is all there is
				to := m.newDir(t)
				data, err := os.ReadFile(filepath.Join(m.dir, stateFile))
				if err == nil {
					err = os.WriteFile(filepath.Join(to, stateFile), data, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				m.close(t)
				m.dir = to
				m.open(t)
			},
			"reboot": m.reboot,
		})
	})
}

func wantCode(t *rapid.T, code frames.Code, err error) {
	if refused, ok := err.(*RefusedError); !ok || refused.Code != code {
		t.Fatalf("got %v, want %v", err, code)
	}
}
