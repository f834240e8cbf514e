package witness

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"sync"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/boltfile"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
	"coordinator/internal/failpoint"
	"coordinator/internal/meter"
)

const (
	// MaxLeaseSecs is the protocol's longest lease: expires_at <= issued_at+60 (protocol.md §4).
	MaxLeaseSecs = 60
	// lockFile is held for as long as a Witness is open.
	lockFile = "witness.lock"
)

// Options configure [Open].
type Options struct {
	// ID is the witness's id, which must be the one its file was made with.
	ID frames.WitnessID
	// Key signs the certificates. It is also the authority key of the witness's handshake.
	Key handshake.Signer
	// MaxLeaseSecs bounds the lease that a request may ask for. Zero means 60, the most.
	MaxLeaseSecs uint16
	// CoordinatorDir is the coordinator's state directory if it is known. Open refuses to
	// live in, above or on a file of it; a coordinator's directory that is not named here
	// is recognised by its layout.
	CoordinatorDir string
	// BootID names this boot of the machine; BOOTTIME readings compare only within one.
	BootID string
	// Clock and Rand are the only sources of time and of tokens.
	Clock clock.Clock
	Rand  io.Reader
	// Logger gets a line per activation, relinquishment and reboot. Nil discards.
	Logger *slog.Logger

	schemas boltfile.Schemas // nil: the program's
}

// Status is what the witness says about one coordinator; all zero before its first activation.
type Status struct {
	LastEpoch  frames.AuthorityEpoch
	Activation frames.ActivationSequence
	// LeaseRemaining is rounded up to whole seconds, as on the wire; zero when no lease is live.
	LeaseRemaining time.Duration
}

// A Witness is the state machine of links.md. Its methods may be called from any goroutine;
// each is durable before it returns success. A refusal is a *[RefusedError]. Once a write has
// failed, that and every later call matches [ErrFailed].
type Witness struct {
	opt  Options
	log  *slog.Logger
	lock *durable.Lock

	meters Meters

	mu     sync.Mutex
	ledger *ledger                         // guarded by mu; nil once closed
	leases map[frames.CoordinatorID]*lease // guarded by mu; what is durable, never ahead of it
	failed error                           // guarded by mu; set once, by the first failed write
}

// Create makes the state file of a new witness in dir, a private directory. It refuses with
// an error matching fs.ErrExist when there is one.
func Create(dir string, id frames.WitnessID) error {
	if id == (frames.WitnessID{}) {
		return errors.New("create witness: the witness id is zero")
	}
	if err := CheckPlacement(dir, ""); err != nil {
		return err
	}
	if err := durable.CheckPrivateDir(dir); err != nil {
		return err
	}
	return createLedger(filepath.Join(dir, stateFile), id)
}

// Open locks dir, checks the witness's file completely and returns the witness. It never makes
// a file. Errors: *durable.HeldError (another instance), *[PlacementError], *[MissingError],
// *[CorruptError], *[SchemaError], *[IdentityError], *durable.UnsafeFileError.
func Open(dir string, o Options) (*Witness, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("open witness: %w", err)
	}
	if err := CheckPlacement(dir, o.CoordinatorDir); err != nil {
		return nil, err
	}
	if err := durable.CheckPrivateDir(dir); err != nil {
		return nil, err
	}
	lock, err := durable.Acquire(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	w := &Witness{opt: o, log: o.Logger, lock: lock, meters: Meters{Store: meter.NewDurations(meter.FlushBounds...)}}
	if w.ledger, w.leases, err = openLedger(filepath.Join(dir, stateFile), o.ID, o.schemas, func(line string) { o.Logger.Info("file is migrated", "step", line) }); err == nil {
		if err = w.adoptBoot(); err != nil {
			err = errors.Join(err, w.ledger.close())
		}
	}
	if err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	return w, nil
}

func (o *Options) check() error {
	switch {
	case o.ID == (frames.WitnessID{}):
		return errors.New("the witness id is zero")
	case o.BootID == "" || len(o.BootID) > maxBootID:
		return errors.New("the boot id is missing or too long")
	case o.MaxLeaseSecs > MaxLeaseSecs:
		return fmt.Errorf("the longest lease is %d s, the configuration says %d", MaxLeaseSecs, o.MaxLeaseSecs)
	case o.Key == nil || o.Clock == nil || o.Rand == nil:
		return errors.New("key, clock or randomness is missing")
	}
	if o.MaxLeaseSecs == 0 {
		o.MaxLeaseSecs = MaxLeaseSecs
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.schemas == nil {
		o.schemas = schemas
	}
	return nil
}

// adoptBoot carries leases over a reboot: one that was not relinquished counts as live for its
// own length from this start, and from now on in this boot's BOOTTIME, so that another restart
// of the witness does not prolong it again. The same holds for a lease that claims to run
// longer than it was granted for, which only a clock that was set back under the same boot id
// (a restored machine image) can cause.
func (w *Witness) adoptBoot() error {
	now := w.opt.Clock.Now()
	moved := make(map[frames.CoordinatorID]*lease)
	for id, l := range w.leases {
		if l.Spent || l.BootID == w.opt.BootID && l.Expires-now.Boot <= l.Length {
			continue
		}
		n := *l
		n.BootID, n.Expires = w.opt.BootID, addCapped(now.Boot, l.Length)
		moved[id] = &n
	}
	if len(moved) == 0 {
		return nil
	}
	if err := w.ledger.put(moved); err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	for id, l := range moved {
		w.leases[id] = l
		w.log.Info("lease of an earlier boot counts from this start", "coordinator", id.String(),
			"epoch", uint64(l.Epoch), "activation", uint64(l.Activation), "for", l.Length)
	}
	return nil
}

// MaxLeaseSecs is the longest lease that a request may ask for.
func (w *Witness) MaxLeaseSecs() uint16 { return w.opt.MaxLeaseSecs }

// ID is the witness's id.
func (w *Witness) ID() frames.WitnessID { return w.opt.ID }

// Activate grants a lease to holder for a new activation of coordinator c. Refusals:
// STALE_AUTHORITY for an epoch that is not above the last, RESOURCE_EXHAUSTED while a lease
// is live ([Witness.Status] tells how long).
func (w *Witness) Activate(holder frames.KeyID, c frames.CoordinatorID, epoch frames.AuthorityEpoch, inc frames.IncarnationID, leaseSecs uint16) (frames.Certificate, error) {
	if err := w.checkLeaseSecs(leaseSecs); err != nil {
		return frames.Certificate{}, err
	}
	l, token, err := w.activate(holder, c, epoch, inc, leaseSecs)
	if err != nil {
		return frames.Certificate{}, err
	}
	w.meters.Granted.Add(1)
	w.log.Info("activated", "coordinator", c.String(), "epoch", uint64(l.Epoch), "activation", uint64(l.Activation),
		"incarnation", inc.String(), "key", shortKey(holder), "lease_secs", leaseSecs)
	return w.sign(c, l, token)
}

func (w *Witness) activate(holder frames.KeyID, c frames.CoordinatorID, epoch frames.AuthorityEpoch, inc frames.IncarnationID, leaseSecs uint16) (lease, [32]byte, error) {
	var token [32]byte
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.readyLocked(); err != nil {
		return lease{}, token, err
	}
	now := w.opt.Clock.Now()
	var last lease
	if l := w.leases[c]; l != nil {
		last = *l
	}
	switch {
	case epoch <= last.Epoch:
		return lease{}, token, refuse(frames.CodeStaleAuthority, "epoch %d is not above the last epoch %d", epoch, last.Epoch)
	case last.live(now.Boot):
		return lease{}, token, refuse(frames.CodeResourceExhausted, "activation %d at epoch %d still holds the lease for %d s",
			last.Activation, last.Epoch, roundUp(last.Expires-now.Boot))
	case last.Activation == math.MaxUint64:
		return lease{}, token, refuse(frames.CodeInternal, "activation sequence is used up")
	}
	if err := mint(w.opt.Rand, &token); err != nil {
		return lease{}, token, err
	}
	length := time.Duration(leaseSecs) * time.Second
	next := lease{
		Epoch: epoch, Activation: last.Activation + 1, TokenHash: sha256.Sum256(token[:]),
		Incarnation: inc, Holder: holder, Length: length,
		BootID: w.opt.BootID, Expires: addCapped(now.Boot, length),
		IssuedAt: now.Unix(), ExpiresAt: now.Unix() + uint64(leaseSecs),
	}
	return next, token, w.storeLocked(c, next)
}

// Renew prolongs the lease that token and the other three values name exactly, while it is
// live and not relinquished; anything else is STALE_AUTHORITY. The new end is the later of the
// old one and now + leaseSecs, and the certificate carries what is then left.
func (w *Witness) Renew(c frames.CoordinatorID, epoch frames.AuthorityEpoch, activation frames.ActivationSequence, inc frames.IncarnationID, token [32]byte, leaseSecs uint16) (frames.Certificate, error) {
	if err := w.checkLeaseSecs(leaseSecs); err != nil {
		return frames.Certificate{}, err
	}
	l, err := w.renew(c, epoch, activation, inc, token, leaseSecs)
	if err != nil {
		return frames.Certificate{}, err
	}
	w.meters.Renewed.Add(1)
	return w.sign(c, l, token)
}

func (w *Witness) renew(c frames.CoordinatorID, epoch frames.AuthorityEpoch, activation frames.ActivationSequence, inc frames.IncarnationID, token [32]byte, leaseSecs uint16) (lease, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.readyLocked(); err != nil {
		return lease{}, err
	}
	now := w.opt.Clock.Now()
	l := w.leases[c]
	if l == nil || l.Epoch != epoch || l.Activation != activation || l.Incarnation != inc || !l.isToken(token) {
		return lease{}, refuse(frames.CodeStaleAuthority, "this is not the last activation")
	}
	if !l.live(now.Boot) {
		return lease{}, refuse(frames.CodeStaleAuthority, "the lease of activation %d has ended", l.Activation)
	}
	next := *l
	next.Expires = max(l.Expires, addCapped(now.Boot, time.Duration(leaseSecs)*time.Second))
	next.Length = next.Expires - now.Boot
	// Rounded down: a certificate never promises time that the witness does not keep free.
	next.IssuedAt = now.Unix()
	next.ExpiresAt = next.IssuedAt + uint64(next.Length/time.Second)
	return next, w.storeLocked(c, next)
}

// Relinquish marks the lease spent, so that the next activation need not wait for its end. Only
// the key that activated may, with the exact incarnation and token; a repeat succeeds, anything
// else is STALE_AUTHORITY.
func (w *Witness) Relinquish(holder frames.KeyID, c frames.CoordinatorID, token [32]byte, inc frames.IncarnationID) error {
	l, changed, err := w.relinquish(holder, c, token, inc)
	if err == nil && changed {
		w.meters.Relinquished.Add(1)
		w.log.Info("relinquished", "coordinator", c.String(), "epoch", uint64(l.Epoch), "activation", uint64(l.Activation), "incarnation", inc.String())
	}
	return err
}

func (w *Witness) relinquish(holder frames.KeyID, c frames.CoordinatorID, token [32]byte, inc frames.IncarnationID) (l lease, changed bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.readyLocked(); err != nil {
		return lease{}, false, err
	}
	have := w.leases[c]
	if have == nil || have.Holder != holder || have.Incarnation != inc || !have.isToken(token) {
		return lease{}, false, refuse(frames.CodeStaleAuthority, "this is not the last activation, or not its key")
	}
	if have.Spent {
		return *have, false, nil
	}
	next := *have
	next.Spent = true
	return next, true, w.storeLocked(c, next)
}

// Status says where coordinator c stands.
func (w *Witness) Status(c frames.CoordinatorID) (Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.readyLocked(); err != nil {
		return Status{}, err
	}
	l := w.leases[c]
	if l == nil {
		return Status{}, nil
	}
	s := Status{LastEpoch: l.Epoch, Activation: l.Activation}
	if now := w.opt.Clock.Now(); l.live(now.Boot) {
		s.LeaseRemaining = time.Duration(roundUp(l.Expires-now.Boot)) * time.Second
	}
	return s, nil
}

// Turn returns nil once the witness can answer: nothing that it stores is stuck in the disk.
// It waits for that, however long, and fails as every request then does.
func (w *Witness) Turn(context.Context) error {
	_, err := w.Status(frames.CoordinatorID{})
	return err
}

// Close gives up the file and the lock. Later calls match [ErrClosed].
func (w *Witness) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ledger == nil {
		return nil
	}
	err := w.ledger.close()
	w.ledger = nil
	return errors.Join(err, w.lock.Release())
}

// readyLocked fails when nothing may be answered any more.
func (w *Witness) readyLocked() error {
	switch {
	case w.failed != nil:
		return w.failed
	case w.ledger == nil:
		return fmt.Errorf("witness: %w", ErrClosed)
	}
	return nil
}

// storeLocked makes l the durable lease of c. A failed write leaves the file in an unknown
// state, so it ends this witness: the next start reads what is really there.
func (w *Witness) storeLocked(c frames.CoordinatorID, l lease) error {
	err := w.lock.Check()
	if err == nil {
		failpoint.Hit("witness-built")
		began := time.Now()
		err = w.ledger.put(map[frames.CoordinatorID]*lease{c: &l})
		w.meters.Store.Took(time.Since(began))
	}
	if err != nil {
		w.failed = fmt.Errorf("%w: %w", ErrFailed, err)
		return w.failed
	}
	failpoint.Hit("witness-synced")
	w.leases[c] = &l
	return nil
}

func (w *Witness) checkLeaseSecs(secs uint16) error {
	if secs == 0 || secs > w.opt.MaxLeaseSecs {
		return refuse(frames.CodeMalformedMessage, "a lease has 1 to %d s", w.opt.MaxLeaseSecs)
	}
	return nil
}

// sign makes the certificate of l, which is durable already.
func (w *Witness) sign(c frames.CoordinatorID, l lease, token [32]byte) (frames.Certificate, error) {
	cert := frames.Certificate{
		WitnessID: w.opt.ID, CoordinatorID: c, Activation: l.Activation, Epoch: l.Epoch,
		IncarnationID: l.Incarnation, Token: token, IssuedAt: l.IssuedAt, ExpiresAt: l.ExpiresAt,
		WitnessKeyID: handshake.FingerprintOf(w.opt.Key.Public()),
	}
	preimage, err := cert.Preimage()
	if err == nil {
		cert.Signature, err = w.opt.Key.Sign(preimage)
	}
	if err != nil {
		return frames.Certificate{}, fmt.Errorf("sign certificate: %w", err)
	}
	return cert, nil
}

// live says whether the lease keeps others out at BOOTTIME now. The zero lease does not.
func (l *lease) live(now time.Duration) bool { return !l.Spent && now < l.Expires }

func (l *lease) isToken(token [32]byte) bool {
	h := sha256.Sum256(token[:])
	return subtle.ConstantTimeCompare(h[:], l.TokenHash[:]) == 1
}

// mint fills token with randomness, never zero.
func mint(r io.Reader, token *[32]byte) error {
	for *token == ([32]byte{}) {
		if _, err := io.ReadFull(r, token[:]); err != nil {
			return fmt.Errorf("mint token: %w", err)
		}
	}
	return nil
}

// addCapped is a + b, at most the largest duration.
func addCapped(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// roundUp is d in whole seconds.
func roundUp(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }

// shortKey names a key in a log line.
func shortKey(k frames.KeyID) string { return fmt.Sprintf("%x", k[:6]) }
