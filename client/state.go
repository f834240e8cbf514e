package client

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"coordinator/frames"
	"coordinator/internal/durable"
)

const (
	stateVersion = 1
	// maxStateBytes bounds the state file; a full journal takes about 300 KiB.
	maxStateBytes = 1 << 20
	// maxParsedBytes is up to where what was parsed last is remembered: without a journal.
	maxParsedBytes = 4 << 10
	// maxJournal bounds the operations whose outcome is not known.
	maxJournal = 1024
	// maxAcceptedKeys bounds the keys of ours that the coordinator is known to have accepted.
	maxAcceptedKeys = 8
)

// errUnchanged ends an update that has nothing to write.
var errUnchanged = errors.New("unchanged")

// A State is what a client must remember of one coordinator across runs: the highest
// authority seen, whether a snapshot has verified under it, the cut that the client has
// been shown, and the operations whose outcome it does not know (protocol.md §4).
//
// It lives in one file beside the context file, replaced atomically, and may be shared by
// any number of processes; each change is merged into what the file then holds. Its
// methods may be called from any goroutine.
type State struct {
	path  string // empty when store is not a file
	store StateStore
	id    frames.CoordinatorID

	mu    sync.Mutex
	mem   memory             // guarded by mu; as last read or written
	conns map[*Conn]struct{} // guarded by mu; open connections that use this state

	raw    []byte   // guarded by mu; what parsed was read from, nil before
	parsed memory   // guarded by mu; never changed
	kept   *cutSeen // guarded by mu; the cut that store held when it was last read or written

	proven atomic.Pointer[proven] // the certificate that was found signed last

	shown atomic.Pointer[cutSeen] // a cut that mem is not below, nil when mem was replaced since
}

// memory is the content of the state file. Ids and hashes are lowercase hex.
type memory struct {
	Version       int             `json:"version"`
	CoordinatorID string          `json:"coordinator_id"`
	Authority     *authoritySeen  `json:"authority,omitempty"`
	Quarantine    *quarantineSeen `json:"quarantine,omitempty"`
	Cut           *cutSeen        `json:"cut,omitempty"`
	LostHistory   *LostHistory    `json:"lost_history,omitempty"`
	AcceptedKeys  []string        `json:"accepted_keys,omitempty"` // newest last
	Operations    []journalEntry  `json:"operations,omitempty"`
}

// authoritySeen is the highest authority that has proved itself. Verified is true once a
// snapshot has verified under it (D-44).
type authoritySeen struct {
	Epoch       frames.AuthorityEpoch     `json:"authority_epoch"`
	Activation  frames.ActivationSequence `json:"activation_sequence"`
	Incarnation string                    `json:"incarnation_id"`
	TokenSHA256 string                    `json:"fencing_token_sha256"`
	Verified    bool                      `json:"verified"`
}

type quarantineSeen struct {
	Epoch       frames.AuthorityEpoch     `json:"authority_epoch"`
	Activation  frames.ActivationSequence `json:"activation_sequence"`
	Incarnation string                    `json:"incarnation_id"`
	TokenSHA256 string                    `json:"fencing_token_sha256"`
}

// cutSeen is the highest event sequence shown to the client and the activation it belongs to.
type cutSeen struct {
	Activation frames.ActivationSequence `json:"activation_sequence"`
	Sequence   frames.EventCut           `json:"event_sequence"`
}

// journalEntry is an operation that was begun and whose final result is not known.
type journalEntry struct {
	OperationID   string `json:"operation_id"`
	CommandDigest string `json:"command_digest"`
	Indeterminate bool   `json:"indeterminate,omitempty"` // its history was lost: never resent
}

// An Unresolved is an operation that this client began and whose outcome it does not know.
type Unresolved struct {
	OperationID   frames.OperationID
	CommandDigest [32]byte
	// Indeterminate says that the history in which it may have run was lost (D-26); it is
	// never resent.
	Indeterminate bool
}

// StatePath is where the memory of a coordinator lives beside its context file.
func StatePath(contextPath string, id frames.CoordinatorID) string {
	return filepath.Join(filepath.Dir(contextPath), "authority."+id.String()+".json")
}

// OpenState reads the memory of c's coordinator. A missing file is an empty memory; one
// that cannot be read as what it is gives a *[StateError], and is left alone.
func OpenState(c *Context) (*State, error) {
	path := StatePath(c.Path, c.CoordinatorID)
	return openState(c, path, stateFile(path))
}

// OpenStateIn is [OpenState] with the memory in store instead of a file.
func OpenStateIn(store StateStore, c *Context) (*State, error) { return openState(c, "", store) }

func openState(c *Context, path string, store StateStore) (*State, error) {
	s := &State{path: path, store: store, id: c.CoordinatorID, conns: map[*Conn]struct{}{}}
	raw, err := store.Load()
	if err != nil {
		return nil, fmt.Errorf("client state: %w", err)
	}
	if s.mem, err = s.parseLocked(raw); err != nil { // which nobody else has yet
		return nil, err
	}
	s.kept = s.mem.Cut
	return s, nil
}

// parseLocked is parse of what may be just what was parsed last. The caller may change what
// it gets.
func (s *State) parseLocked(raw []byte) (memory, error) {
	if raw == nil || s.raw == nil || !bytes.Equal(raw, s.raw) {
		m, err := s.parse(raw)
		if err != nil || raw == nil || len(raw) > maxParsedBytes {
			return m, err
		}
		s.raw, s.parsed = bytes.Clone(raw), m
	}
	return s.parsed.clone(), nil
}

// clone is a memory that shares nothing which is ever changed.
func (m memory) clone() memory {
	m.Authority, m.Quarantine, m.Cut, m.LostHistory = copied(m.Authority), copied(m.Quarantine), copied(m.Cut), copied(m.LostHistory)
	m.AcceptedKeys, m.Operations = slices.Clone(m.AcceptedKeys), slices.Clone(m.Operations)
	return m
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// parse reads the file's content; nil is an empty memory.
func (s *State) parse(raw []byte) (memory, error) {
	m := memory{Version: stateVersion, CoordinatorID: s.id.String()}
	if raw == nil {
		return m, nil
	}
	bad := func(format string, a ...any) (memory, error) {
		return memory{}, &StateError{Path: s.path, Problem: fmt.Sprintf(format, a...) +
			"; restore it, or remove it to trust this coordinator anew as if for the first time"}
	}
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(raw, &version); err != nil {
		return bad("not the JSON that it should be")
	}
	if version.Version > stateVersion {
		return memory{}, &StateError{Path: s.path, Problem: fmt.Sprintf("has version %d, and this program reads up to %d; it was left untouched: use the newer "+
			"program, as without this file nothing is known of authorities that this client has met", version.Version, stateVersion)}
	}
	if version.Version != stateVersion {
		return bad("version %d, this program reads version %d", version.Version, stateVersion)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return bad("damaged: %v", err)
	}
	if m.CoordinatorID != s.id.String() {
		return bad("belongs to coordinator %s", m.CoordinatorID)
	}
	if a := m.Authority; a != nil && (a.Epoch == 0 || a.Activation == 0 || !isHex(a.Incarnation, 16) || !isHex(a.TokenSHA256, 32)) {
		return bad("damaged: authority")
	}
	for _, op := range m.Operations {
		if !isHex(op.OperationID, 16) || !isHex(op.CommandDigest, 32) {
			return bad("damaged: operations")
		}
	}
	return m, nil
}

func isHex(s string, n int) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == n
}

// updateLocked merges a change into the file and the memory. edit must depend on nothing
// but m, and gives errUnchanged when there is nothing to write; the common case costs a
// lock and a read.
func (s *State) updateLocked(edit func(m *memory) error) error {
	var next memory
	shown := s.mem.Cut
	var refused error // what edit said of the file's content, to be returned after the write
	err := s.store.Update(func(old []byte) ([]byte, error) {
		m, err := s.parseLocked(old)
		if err != nil {
			return nil, err
		}
		if refused = edit(&m); refused != nil && !errors.As(refused, new(*QuarantineError)) {
			next = m
			return nil, refused
		}
		next = m
		out, err := json.MarshalIndent(&m, "", "  ")
		return append(out, '\n'), err
	})
	switch {
	case errors.Is(err, errUnchanged):
		s.replaceLocked(next, shown)
		return nil
	case err != nil && refused == nil:
		if errors.As(err, new(*StateError)) || errors.As(err, new(*durable.UnsafeFileError)) {
			return err
		}
		return &StateError{s.path, "cannot be written: " + err.Error(), err}
	case err != nil:
		return refused
	}
	s.replaceLocked(next, shown)
	return refused
}

// replaceLocked carries over what the memory had been shown and the file does not hold yet.
func (s *State) replaceLocked(next memory, shown *cutSeen) {
	s.shown.Store(nil)
	s.mem, s.kept = next, next.Cut
	if shown != nil {
		s.mem.raise(*shown)
	}
}

// accept holds a verified certificate against the highest authority seen, and records it
// durably when it is higher. It reports whether a snapshot has already verified under it.
// Every connection of a lower authority is closed before accept returns.
func (s *State) accept(cert *frames.Certificate, tokenSHA256 [32]byte, key frames.KeyID) (verified bool, err error) {
	s.mu.Lock()
	got := authoritySeen{
		Epoch: cert.Epoch, Activation: cert.Activation,
		Incarnation: cert.IncarnationID.String(), TokenSHA256: hex.EncodeToString(tokenSHA256[:]),
	}
	err = s.updateLocked(func(m *memory) error {
		err := m.accept(got, s.path)
		if (err == nil || errors.Is(err, errUnchanged)) && m.acceptKey(key) {
			return nil
		}
		return err
	})
	if err != nil {
		s.mu.Unlock()
		return false, err
	}
	verified = s.mem.Authority.Verified
	var lower []*Conn
	for c := range s.conns {
		if c.guard.Epoch < cert.Epoch {
			lower = append(lower, c)
		}
	}
	s.mu.Unlock()
	for _, c := range lower {
		c.fail(ErrSuperseded)
	}
	return verified, nil
}

// accept is the rule of protocol.md §4 for what a client refuses.
func (m *memory) accept(got authoritySeen, path string) error {
	if q := m.Quarantine; q != nil {
		return &QuarantineError{Epoch: q.Epoch, Activation: q.Activation, StateFile: path}
	}
	have := m.Authority
	switch {
	case have == nil || got.Epoch > have.Epoch && got.Activation > have.Activation:
		m.Authority = &got
		return nil
	case got.Epoch == have.Epoch && got.Activation == have.Activation:
		if got.Incarnation == have.Incarnation && got.TokenSHA256 == have.TokenSHA256 {
			return errUnchanged
		}
	case got.Epoch <= have.Epoch && got.Activation <= have.Activation:
		return &LowerAuthorityError{HaveEpoch: have.Epoch, GotEpoch: got.Epoch, HaveActivation: have.Activation, GotActivation: got.Activation}
	}
	m.Quarantine = &quarantineSeen{Epoch: got.Epoch, Activation: got.Activation, Incarnation: got.Incarnation, TokenSHA256: got.TokenSHA256}
	return &QuarantineError{Epoch: got.Epoch, Activation: got.Activation, StateFile: path}
}

// acceptKey notes that the coordinator accepted key, and reports a change.
func (m *memory) acceptKey(key frames.KeyID) bool {
	if slices.Contains(m.AcceptedKeys, key.String()) {
		return false
	}
	m.AcceptedKeys = append(m.AcceptedKeys, key.String())
	if over := len(m.AcceptedKeys) - maxAcceptedKeys; over > 0 {
		m.AcceptedKeys = m.AcceptedKeys[over:]
	}
	return true
}

// acceptedBefore reports whether the coordinator is known to have accepted key.
func (s *State) acceptedBefore(key frames.KeyID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.mem.AcceptedKeys, key.String())
}

// attach registers an open connection, unless a higher authority has been met meanwhile.
func (s *State) attach(c *Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.mem.Authority; a != nil && a.Epoch > c.guard.Epoch {
		return ErrSuperseded
	}
	s.conns[c] = struct{}{}
	return nil
}

func (s *State) detach(c *Conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// cut is what the client has been shown so far; the zero cut when nothing.
func (s *State) cut() cutSeen {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem.Cut == nil {
		return cutSeen{}
	}
	return *s.mem.Cut
}

// snapshotVerified records that a snapshot of activation has verified with cut base, and
// what it showed of lost history: the unresolved operations are indeterminate then.
func (s *State) snapshotVerified(activation frames.ActivationSequence, base frames.EventCut, lost *LostHistory) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.updateLocked(func(m *memory) error {
		if m.Authority == nil || m.Authority.Activation != activation {
			return ErrSuperseded
		}
		if m.Authority.Verified && lost == nil && m.Cut != nil && m.Cut.Activation == activation && m.Cut.Sequence >= base {
			return errUnchanged
		}
		m.Authority.Verified = true
		if lost != nil {
			m.LostHistory = lost
			for i := range m.Operations {
				m.Operations[i].Indeterminate = true
			}
		}
		if m.Cut == nil || m.Cut.Activation < activation || lost != nil {
			m.Cut = &cutSeen{Activation: activation}
		}
		m.Cut.Sequence = max(m.Cut.Sequence, base)
		return nil
	})
}

// begunWith finds the journal entry of op. It refuses an operation that is indeterminate,
// or that was begun with another command.
func (m *memory) begunWith(op frames.OperationID, digest [32]byte) (bool, error) {
	id := op.String()
	for _, e := range m.Operations {
		if e.OperationID != id {
			continue
		}
		if e.Indeterminate {
			return true, &IndeterminateError{op}
		}
		if e.CommandDigest != hex.EncodeToString(digest[:]) {
			return true, &OtherCommandError{op}
		}
		return true, nil
	}
	return false, nil
}

// begunWith is [memory.begunWith] of what the memory now holds.
func (s *State) begunWith(op frames.OperationID, digest [32]byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mem.begunWith(op, digest)
}

// begin checks that op may be sent with a command of this digest and, when record is set,
// makes it durable as unresolved. added reports a new entry.
func (s *State) begin(op frames.OperationID, digest [32]byte, record bool) (added bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !record {
		_, err := s.mem.begunWith(op, digest)
		return false, err
	}
	err = s.updateLocked(func(m *memory) error {
		added = false
		if found, err := m.begunWith(op, digest); err != nil || found {
			return cmp.Or(err, errUnchanged)
		}
		if len(m.Operations) >= maxJournal {
			return ErrJournalFull
		}
		m.Operations = append(m.Operations, journalEntry{OperationID: op.String(), CommandDigest: hex.EncodeToString(digest[:])})
		added = true
		return nil
	})
	return added && err == nil, err
}

// settle records what is known of an operation: the cut that its result shows, unless
// zero, and, when final, that it is resolved. Without durable, a cut alone is kept in
// memory until Flush or the next write.
func (s *State) settle(op frames.OperationID, final bool, cut cutSeen, durable bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem.raise(cut)
	id := op.String()
	is := func(e journalEntry) bool { return e.OperationID == id }
	if !durable && !(final && slices.ContainsFunc(s.mem.Operations, is)) {
		return nil
	}
	return s.updateLocked(func(m *memory) error {
		changed := m.raise(cut)
		if final && slices.ContainsFunc(m.Operations, is) {
			m.Operations = slices.DeleteFunc(m.Operations, is)
			changed = true
		}
		if !changed {
			return errUnchanged
		}
		return nil
	})
}

// Flush makes the cut durable. Connections do so when they close.
func (s *State) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem.Cut == nil || s.kept != nil && *s.kept == *s.mem.Cut {
		return nil
	}
	cut := *s.mem.Cut
	return s.updateLocked(func(m *memory) error {
		if !m.raise(cut) {
			return errUnchanged
		}
		return nil
	})
}

// observe raises the cut that this client has been shown, in memory; it costs no I/O and
// becomes durable with the next write or Flush. Of many subscriptions that are shown the
// same, one takes the lock.
func (s *State) observe(cut cutSeen) {
	if have := s.shown.Load(); have != nil && have.Activation == cut.Activation && have.Sequence >= cut.Sequence {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem.raise(cut) {
		s.shown.Store(s.mem.Cut)
	}
}

// raise lifts the cut within the activation that it belongs to. It moves to another
// activation only with a verified snapshot, which first holds the old cut against the
// new history. It reports a change.
func (m *memory) raise(cut cutSeen) bool {
	if cut.Sequence == 0 || m.Cut == nil || m.Cut.Activation != cut.Activation || m.Cut.Sequence >= cut.Sequence {
		return false
	}
	raised := cut // so that nothing is allocated otherwise
	m.Cut = &raised
	return true
}

// Unresolved lists the operations whose outcome is not known, oldest first.
func (s *State) Unresolved() []Unresolved {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Unresolved
	for _, e := range s.mem.Operations {
		u := Unresolved{Indeterminate: e.Indeterminate}
		raw, _ := hex.DecodeString(e.OperationID) // both were checked when they were read
		copy(u.OperationID[:], raw)
		raw, _ = hex.DecodeString(e.CommandDigest)
		copy(u.CommandDigest[:], raw)
		out = append(out, u)
	}
	return out
}

// Forget drops an operation from the unresolved ones: its outcome has been learned in
// another way, or does not matter.
func (s *State) Forget(op frames.OperationID) error { return s.settle(op, true, cutSeen{}, true) }

// LostHistory is the loss of history found last, nil when there never was one.
func (s *State) LostHistory() *LostHistory {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem.LostHistory == nil {
		return nil
	}
	lost := *s.mem.LostHistory
	return &lost
}

// Path is the state file, empty when the memory is kept elsewhere.
func (s *State) Path() string { return s.path }
