package handshake

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
)

// RegistryOptions configure one service's registry.
type RegistryOptions struct {
	// Clock paces polling and retries. Nil means the system clock.
	Clock clock.Clock
	// Logger gets one line per generation and per cause of trouble. Nil discards.
	Logger *slog.Logger
	// KnownScopes names the service's scope bits. Required.
	KnownScopes ScopeNames
	// NeedCoordinator demands coordinator= in each record.
	NeedCoordinator bool
	// OnChange is called after each new generation is in force, for one after the
	// other, by a goroutine that Run joins. What it waits for delays no later
	// generation, short of maxUntold of them. The first one is not told, nor is one
	// whose turn has not come when Run ends.
	OnChange func(Snapshot)

	// noWatch stands in for an exhausted inotify in tests.
	noWatch error
}

// Rules are the rules that the options set for records.
func (o *RegistryOptions) Rules() Rules { return Rules{o.KnownScopes, o.NeedCoordinator} }

// A Snapshot is one generation of the registry. It is not modified any more.
type Snapshot struct {
	Generation uint64   // from 1, rises with each change in force
	Records    []Record // in file order; revoked and expired ones included
	// Problem is set when the file is bad: Records is then empty, nobody is
	// authorised, and no record counts as removed [D-43].
	Problem error
}

// A Registry holds the workload keys that may connect, as the file at its path
// says at any time while Run runs (protocol.md §5.1).
type Registry struct {
	path  string // absolute; "" for a static one
	opts  RegistryOptions
	clock clock.Clock
	log   *slog.Logger

	judge judge // owned by Run once it is running

	mu     sync.Mutex
	snap   Snapshot
	byKey  map[frames.KeyID]Record
	grants map[*Grant]struct{}
}

// OpenRegistry loads the registry at path. A missing, malformed or unsafe file
// is an error here, where a later one only empties the registry: see
// *RegistryError and *durable.UnsafeFileError.
func OpenRegistry(path string, o RegistryOptions) (*Registry, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	r := newRegistry(path, o)
	data, err := durable.ReadPrivate(path, MaxRegistryBytes)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	records, err := parseRegistry(path, data, r.opts.Rules())
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	r.judge.applied = sha256.Sum256(data)
	r.install(records, nil)
	return r, nil
}

// StaticRegistry holds fixed records and follows no file; Run only waits.
func StaticRegistry(records []Record) *Registry {
	r := newRegistry("", RegistryOptions{})
	for i := range records {
		records[i].KeyID = KeyIDOf(records[i].PublicKey)
	}
	r.install(slices.Clone(records), nil)
	return r
}

func newRegistry(path string, o RegistryOptions) *Registry {
	r := &Registry{path: path, opts: o, clock: o.Clock, log: o.Logger, grants: map[*Grant]struct{}{}}
	if r.clock == nil {
		r.clock = clock.System()
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	return r
}

// Lookup returns the record of a key in the generation in force, revoked and
// expired ones included.
func (r *Registry) Lookup(id frames.KeyID) (Record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.byKey[id]
	return rec, ok
}

// Snapshot returns the generation in force.
func (r *Registry) Snapshot() Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snap
}

// Generation returns the number of the generation in force.
func (r *Registry) Generation() uint64 { return r.Snapshot().Generation }

// install puts a generation in force. Each grant that it no longer covers is
// revoked for good before install returns: a key that comes back later revives
// nothing.
func (r *Registry) install(records []Record, problem error) Snapshot {
	byKey := make(map[frames.KeyID]Record, len(records))
	for _, rec := range records {
		byKey[rec.KeyID] = rec
	}
	now := r.clock.Now().Unix()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snap = Snapshot{Generation: r.snap.Generation + 1, Records: records, Problem: problem}
	r.byKey = byKey
	for g := range r.grants {
		rec, ok := byKey[g.KeyID]
		if !ok || !rec.covers(g.Scope, g.Coordinator) || rec.ExpiresAt <= now {
			g.revoke()
			delete(r.grants, g)
			continue
		}
		g.shorten(rec.ExpiresAt)
	}
	return r.snap
}

// covers reports whether the record still authorises a grant of scope.
func (r *Record) covers(scope uint64, coordinator frames.CoordinatorID) bool {
	return !r.Revoked() && scope&^r.Scope == 0 && r.Coordinator == coordinator
}

// errNoGrant says that the record changed between proof and grant.
var errNoGrant = errors.New("record no longer covers the grant")

// admit puts a grant under watch if the generation in force still covers it.
func (r *Registry) admit(g *Grant) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.byKey[g.KeyID]
	if !ok || !rec.covers(g.Scope, g.Coordinator) || rec.ExpiresAt < g.ExpiresAt {
		return errNoGrant
	}
	g.reg, g.done = r, make(chan struct{})
	g.end.Store(g.ExpiresAt)
	r.grants[g] = struct{}{}
	return nil
}

// Grants is how many grants are under watch, for status output and tests.
func (r *Registry) Grants() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.grants)
}

func (r *Registry) release(g *Grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.grants, g)
}
