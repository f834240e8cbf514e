//go:build linux

package hosts

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"coordinator/client"
	"coordinator/frames"
)

// clientContext, when it is set, makes this program a client, on whichever host it is run;
// clientDoes is what it does until its standard input ends.
const (
	clientContext = "HOSTS_CONTEXT"
	clientDoes    = "HOSTS_DOES"
)

// What a client does.
const (
	doesLoad    = "load"    // objectives, several at a time
	doesCount   = "count"   // objectives, one after the other, with their number
	doesReplica = "replica" // follows, and holds every view against that order
)

// workers of one load; each has one command under way.
const workers = 4

// A line is what a client says of one thing.
type line struct {
	Objective string `json:"objective,omitempty"` // acknowledged, or not if there is an error
	Phase     string `json:"phase,omitempty"`     // of a replica
	Count     int    `json:"count"`               // objectives of a view, or so far
	Error     string `json:"error,omitempty"`     // what the caller saw of a fault
}

// A speaker prints lines.
type speaker struct {
	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

func (s *speaker) say(l line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Encode(l) //nolint:errcheck // the test that reads is gone
}

func beClient(path, does string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	over, end := context.WithCancel(ctx)
	go func() {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // any end is the end
		end()
	}()
	say := &speaker{out: json.NewEncoder(os.Stdout)}
	c, err := client.LoadContext(path)
	if err == nil && does == doesReplica {
		err = replicate(over, c, say)
	} else if err == nil {
		err = work(ctx, over, c, does, say)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// work creates objectives until over. What a caller would see of a fault is said.
func work(ctx, over context.Context, c *client.Context, does string, say *speaker) error {
	s, err := client.OpenSession(c, client.SessionOptions{Backoff: client.Backoff{First: 10 * time.Millisecond, Max: 200 * time.Millisecond}})
	if err != nil {
		return err
	}
	defer s.Close()
	var made atomic.Int64
	var g errgroup.Group
	at := workers
	if does == doesCount {
		at = 1
	}
	for range at {
		g.Go(func() error {
			for over.Err() == nil {
				n := int(made.Load())
				say.say(create(ctx, s, n))
				made.Add(1)
			}
			return nil
		})
	}
	return g.Wait()
}

// numbered is the document of an objective.
type numbered struct {
	Number int `json:"number"`
}

func create(ctx context.Context, s *client.Session, n int) line {
	id, err := frames.NewID[frames.ObjectiveID](rand.Reader)
	if err != nil {
		return line{Error: err.Error()}
	}
	op, err := frames.NewID[frames.OperationID](rand.Reader)
	if err != nil {
		return line{Error: err.Error()}
	}
	document, err := json.Marshal(numbered{n})
	if err != nil {
		return line{Error: err.Error()}
	}
	cmd, err := client.NewCommand(op, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: document})
	if err != nil {
		return line{Error: err.Error()}
	}
	r, err := s.Do(ctx, cmd)
	switch {
	case err != nil:
		return line{Objective: id.String(), Error: err.Error()}
	case r.State != frames.OperationSucceeded:
		return line{Objective: id.String(), Error: r.State.String()}
	}
	return line{Objective: id.String(), Count: n + 1}
}

// replicate says each phase of a replica, and how much each view holds that is current; a
// view that lacks one of the numbers before its highest is an error.
func replicate(ctx context.Context, c *client.Context, say *speaker) error {
	r, err := client.OpenReplica(c, client.ReplicaOptions{Backoff: client.Backoff{First: 10 * time.Millisecond, Max: 200 * time.Millisecond}})
	if err != nil {
		return err
	}
	defer r.Close()
	var g errgroup.Group
	g.Go(func() error {
		for s := range r.States(ctx) {
			say.say(line{Phase: s.Phase.String()})
		}
		return nil
	})
	last := -1
	_, err = r.WaitFor(ctx, func(v *client.View) bool {
		if n := v.Count(frames.KindObjective); n != last {
			last = n
			l := line{Phase: "view", Count: n}
			if err := whole(v); err != nil {
				l.Error = err.Error()
			}
			say.say(l)
		}
		return false
	})
	g.Wait() //nolint:errcheck // always nil
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// whole says what a view lacks of the numbers that were created one after the other.
func whole(v *client.View) error {
	seen := make([]bool, v.Count(frames.KindObjective))
	for rec := range v.Kind(frames.KindObjective) {
		m, err := rec.Decode()
		if err != nil {
			return err
		}
		var d numbered
		if err := json.Unmarshal(m.(*frames.Objective).Document, &d); err != nil {
			return err
		}
		if d.Number >= len(seen) || seen[d.Number] {
			return fmt.Errorf("number %d is among %d", d.Number, len(seen))
		}
		seen[d.Number] = true
	}
	return nil
}
