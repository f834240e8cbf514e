package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/sock"
	"coordinator/server/outbox"
	"coordinator/server/quota"
)

const (
	// StatusFile is the socket in the state directory on which a running coordinator tells
	// its operator how it is. It takes no part in the quotas of the endpoint's own socket.
	StatusFile = "status.sock"
	// statusTime bounds the write to one reader.
	statusTime = time.Second
	// maxStatus bounds what [ReadStatus] takes in.
	maxStatus = 64 << 20
)

// A Status is how a coordinator is at this moment, as `coordinatord status` shows it.
type Status struct {
	CoordinatorID   string `json:"coordinator_id"`
	Epoch           uint64 `json:"epoch"`
	Activation      uint64 `json:"activation"`
	LeaseExpiresAt  uint64 `json:"lease_expires_at"` // Unix seconds
	Head            uint64 `json:"head"`             // newest published event
	Connections     int    `json:"connections"`      // all that are open
	Unauthenticated int    `json:"unauthenticated"`  // of those, before HELLO_OK
	MaxLocal        int    `json:"max_local"`        // what the descriptors leave for the Unix socket
	Refused         uint64 `json:"refused"`          // connections closed at accept since the start
	// Owners are the links to the configured process owners.
	Owners     []outbox.LinkState `json:"owners"`
	Server     []QuotaUse         `json:"server"`
	Principals []PrincipalUse     `json:"principals"`
}

// A QuotaUse is one row of the table of protocol.md §2.3.
type QuotaUse struct {
	Resource string `json:"resource"` // its name in coordinator.toml
	Held     uint64 `json:"held"`
	Limit    uint64 `json:"limit"`
}

// A PrincipalUse is what one principal holds; what it holds none of is left out.
type PrincipalUse struct {
	KeyID string     `json:"key_id"`
	Label string     `json:"label,omitempty"` // the registry's, while the key is in it
	Uses  []QuotaUse `json:"uses"`
}

// Uses lists what the server and each principal hold of every resource, in the order of
// the table and of the key ids. What nobody's account holds any more is not there.
func (s *Server) Uses() []quota.Use {
	uses := s.quotas.Uses()
	limits := s.quotas.Limits()
	var all uint64
	for k, n := range s.writer.Pending() {
		all += n
		uses = append(uses, quota.Use{
			Resource: quota.Pending, Level: quota.OfPrincipal, Principal: quota.Principal(k), Held: n, Limit: limits[quota.OfPrincipal][quota.Pending],
		})
	}
	uses = append(uses, quota.Use{Resource: quota.Pending, Level: quota.OfServer, Held: all, Limit: limits[quota.OfServer][quota.Pending]})
	slices.SortFunc(uses, func(a, b quota.Use) int {
		return cmp.Or(cmp.Compare(b.Level, a.Level), bytes.Compare(a.Principal[:], b.Principal[:]), cmp.Compare(a.Resource, b.Resource))
	})
	return uses
}

// Status reads how the server is.
func (s *Server) Status() Status {
	cert := s.fence.Current()
	st := Status{
		CoordinatorID: cert.CoordinatorID.String(), Epoch: uint64(cert.Epoch), Activation: uint64(cert.Activation),
		LeaseExpiresAt: cert.ExpiresAt, Head: uint64(s.store.State().Head), MaxLocal: cap(s.local), Refused: s.lines.Refused.Total(),
		Owners: s.outbox.Links(),
	}
	s.mu.Lock()
	st.Connections, st.Unauthenticated = len(s.conns), s.waiting
	s.mu.Unlock()
	labels := make(map[frames.KeyID]string)
	for _, r := range s.registry.Snapshot().Records {
		labels[r.KeyID] = r.Label
	}
	var last quota.Principal
	for _, u := range s.Uses() {
		row := QuotaUse{u.Resource.Key(), u.Held, u.Limit}
		if u.Level == quota.OfServer {
			st.Server = append(st.Server, row)
			continue
		}
		if len(st.Principals) == 0 || u.Principal != last {
			last = u.Principal
			id := frames.KeyID(u.Principal)
			st.Principals = append(st.Principals, PrincipalUse{KeyID: handshake.FormatKeyID(id), Label: labels[id]})
		}
		p := &st.Principals[len(st.Principals)-1]
		p.Uses = append(p.Uses, row)
	}
	return st
}

// tell answers one reader of the status socket. It reads nothing, and one after the other
// is served, so that readers can use nothing up.
func (s *Server) tell(uc *net.UnixConn) {
	defer uc.Close()
	if _, err := sock.SameUser(uc); err != nil {
		s.refused(err)
		return
	}
	b, err := json.Marshal(s.Status())
	if err == nil {
		uc.SetWriteDeadline(time.Now().Add(statusTime)) //nolint:errcheck // the write then fails by itself
		_, err = uc.Write(append(b, '\n'))
	}
	if err != nil {
		s.log.Warn("status not told", "err", err)
	}
}

// ReadStatus asks the coordinator that runs on a state directory how it is, until the
// deadline of ctx, which the caller sets. That none runs there is an error that matches
// os.ErrNotExist or syscall.ECONNREFUSED.
func ReadStatus(ctx context.Context, path string) (*Status, error) {
	uc, err := sock.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	defer uc.Close()
	if end, ok := ctx.Deadline(); ok {
		uc.SetReadDeadline(end) //nolint:errcheck // the read then fails by itself
	}
	var st Status
	if err := json.NewDecoder(io.LimitReader(uc, maxStatus)).Decode(&st); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the coordinator hung up without a word: it is stopping, or runs as another user")
		}
		return nil, err
	}
	return &st, nil
}
