package cirunner

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// A Pipeline says what a build is.
type Pipeline struct {
	Title string
	// Dir is the absolute directory, on the owner's machine, that the stages run in.
	Dir string
	// Env is added to the owner's basic environment.
	Env map[string]string
	// Stages run one after the other, until one fails.
	Stages []Stage
	// Artifacts are the files in Dir that the last stage leaves.
	Artifacts []string
}

// A Stage is one process. Its name is that of its log file too, and no other stage's.
type Stage struct {
	Name string
	Argv []string
}

// A Passed is a stage that ended with status 0, and what proves it.
type Passed struct {
	Stage string
	Run   frames.RunID
	Proof Proof
}

// A StageError is a stage that ended otherwise. Its evidence has been verified all the same.
type StageError struct {
	Stage  string
	Status int32 // 1 to 255, or -n for signal n
	Proof  Proof
}

func (e *StageError) Error() string {
	return fmt.Sprintf("stage %s ended with status %d", e.Stage, e.Status)
}

// A Runner runs builds.
type Runner struct {
	// Context says whom to reach and how to know them; see [client.LoadContext].
	Context *client.Context
	// Owner names the one of the context's owners that runs the stages. Empty means the only one.
	Owner string
	// Options are for special cases, such as a key that the context does not name.
	Options client.Options
}

// capabilities are what a build needs beside the base of the protocol: runs, manifests, the
// replay that heals gaps, and the end of an objective.
const capabilities = frames.CapTerminalBindings | frames.CapArtifactManifests | frames.CapEventReplay | frames.CapObjectiveLifecycle

// A build is one call of Build.
type build struct {
	*Runner
	Pipeline
	dir     string
	options client.Options
	book    *book
	session *client.Session // carries commands over lost connections and dead coordinators
	replica *client.Replica // a verified view that heals itself
}

// Build runs the pipeline, or goes on with the build that dir has a book of, to its end. It may
// be called again with the same dir after any error and any crash, by the same key: what was done
// is not done again, and a build that has ended gives the same answer. Bound ctx: while there is
// no coordinator, Build waits for one.
//
// The error is a *[StageError] when a stage has failed. After any other the build is not over, and
// its processes may be running; docs/go-client.md says which errors pass by themselves.
func (r *Runner) Build(ctx context.Context, p Pipeline, dir string) (passed []Passed, err error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	b := &build{Runner: r, Pipeline: p, dir: dir, options: r.Options}
	if b.book, err = openBook(dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.book.close()) }()
	// The journal makes the OperationId of each command durable before it is sent. Another process
	// therefore knows that it must ask what became of it, and is told if the history in which it
	// may have run was lost with a restored backup.
	b.options.Offered, b.options.Journal = capabilities, true
	if b.session, err = client.OpenSession(r.Context, client.SessionOptions{Options: b.options}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.session.Close()) }()
	b.options.State = b.session.State() // one memory of the authority for both
	if b.replica, err = client.OpenReplica(r.Context, client.ReplicaOptions{Options: b.options}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.replica.Close()) }()
	if err := b.sameHistory(ctx); err != nil {
		return nil, err
	}
	return b.run(ctx)
}

// check refuses names by which two stages would be taken for one, or that are no file's.
func (p *Pipeline) check() error {
	names := map[string]bool{}
	for _, s := range p.Stages {
		if names[s.Name] || s.Name == "" || strings.ContainsRune(s.Name, filepath.Separator) {
			return fmt.Errorf("a stage is named %q: it needs a name of its own that can be a file's", s.Name)
		}
		names[s.Name] = true
	}
	return nil
}

// sameHistory refuses to go on where a restored backup has replaced the history in which the build
// began: the coordinator then does not know of runs whose processes have run. A client finds that
// out with the snapshot by which it verifies another authority.
func (b *build) sameHistory(ctx context.Context) error {
	if _, err := b.replica.WaitFor(ctx, func(*client.View) bool { return true }); err != nil {
		return err
	}
	lost := b.session.State().LostHistory()
	if len(b.book.Steps) == 0 {
		b.book.Lost = lost // of before this build
	}
	if !reflect.DeepEqual(lost, b.book.Lost) {
		return fmt.Errorf("the build in %s began in a history that is gone: look at what it has started, then begin another: %w", b.dir, lost)
	}
	return nil
}

func (b *build) run(ctx context.Context) (passed []Passed, err error) {
	document, err := json.Marshal(map[string]string{"title": b.Title})
	if err != nil {
		return nil, err
	}
	var objective frames.CreateObjective
	err = b.do(ctx, "objective", frames.CommandCreateObjective, &objective, func() ([]frames.Precondition, error) {
		objective = frames.CreateObjective{ObjectiveID: fresh[frames.ObjectiveID](), Schema: 1, Document: document}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	var last *frames.StartRun
	failed := (*StageError)(nil)
	for _, stage := range b.Stages {
		var proof Proof
		if last, proof, err = b.stage(ctx, objective.ObjectiveID, stage); errors.As(err, &failed) {
			break
		} else if err != nil {
			return passed, fmt.Errorf("stage %s: %w", stage.Name, err)
		}
		passed = append(passed, Passed{stage.Name, last.RunID, proof})
	}
	state := frames.ObjectiveCancelled
	if failed == nil {
		if err := b.register(ctx, last); err != nil {
			return passed, fmt.Errorf("artifacts: %w", err)
		}
		state = frames.ObjectiveCompleted
	}
	end := frames.UpdateObjective{ObjectiveID: objective.ObjectiveID, Schema: 1, Document: document, State: &state}
	if err := b.do(ctx, "end", frames.CommandUpdateObjective, &end, nil); err != nil {
		return passed, err
	}
	if failed != nil {
		return passed, failed
	}
	return passed, nil
}

// do carries one step of the build to its end. Body is the command's payload: that of the book when
// the step was begun before, else what draw has filled in. Whoever draws an id does it in draw, so
// that it is drawn once for the build and not once for each attempt.
func (b *build) do(ctx context.Context, step string, kind frames.CommandKind, body codec.Message, draw func() ([]frames.Precondition, error)) error {
	cmd, begun := b.book.Steps[step]
	if begun {
		if err := codec.Decode(body, cmd.Payload); err != nil {
			return fmt.Errorf("the book's step %s: %w", step, err)
		}
	} else {
		var pre []frames.Precondition
		var err error
		if draw != nil {
			if pre, err = draw(); err != nil {
				return err
			}
		}
		if cmd, err = b.keep(step, kind, body, pre...); err != nil {
			return err
		}
	}
	// Do asks what became of a command that may have been sent before, and sends only this very
	// command under this OperationId, so that it runs once or not at all. An OutcomeUnknownError
	// says that nobody could be asked in time: then the next Build asks.
	result, err := b.session.Do(ctx, cmd)
	if err != nil {
		return err
	}
	switch result.State {
	case frames.OperationSucceeded, frames.OperationPending: // whose end the view shows
		return nil
	case frames.OperationTombstoned: // an old result, without its body
		if result.Final == frames.OperationSucceeded {
			return nil
		}
	case frames.OperationRejected:
		return fmt.Errorf("%s: %v: %s", step, result.Code, result.Message)
	}
	// INDETERMINATE: the owner died before it could say whether it started the process. That is
	// a matter for people, and never a reason to start another one.
	return fmt.Errorf("%s is %v: operation %v", step, result.State, cmd.OperationID)
}

// keep puts a new command into the book. It is durable before anybody may send it.
func (b *build) keep(step string, kind frames.CommandKind, body codec.Message, pre ...frames.Precondition) (client.Command, error) {
	cmd, err := client.NewCommand(fresh[frames.OperationID](), kind, body, pre...)
	if err != nil {
		return cmd, err
	}
	return cmd, b.book.keep(step, cmd)
}

// register registers what the build has made, as a manifest of the last stage's session. The
// coordinator keeps the manifest, and whoever has a file can hold it against that.
func (b *build) register(ctx context.Context, last *frames.StartRun) error {
	if len(b.Artifacts) == 0 || last == nil {
		return nil
	}
	var body frames.RegisterArtifactManifest
	return b.do(ctx, "artifacts", frames.CommandRegisterArtifactManifest, &body, func() ([]frames.Precondition, error) {
		digests := map[string]string{}
		for _, name := range b.Artifacts {
			raw, err := os.ReadFile(filepath.Join(b.Dir, name))
			if err != nil {
				return nil, err
			}
			sum := sha256.Sum256(raw)
			digests[name] = hex.EncodeToString(sum[:])
		}
		manifest, err := json.Marshal(digests)
		body = frames.RegisterArtifactManifest{ArtifactID: fresh[frames.ArtifactID](), Revision: 1, Schema: 1, Manifest: manifest}
		// A first revision names its session by a precondition. The run has ended, and in each
		// transaction its session comes before it: no event changes that session any more.
		session := b.replica.View().Get(frames.KindWorkSession, frames.ObjectID(last.WorkSessionID))
		return []frames.Precondition{{Object: session.Ref(), Revision: uint64(session.Revision())}}, err
	})
}

// fresh draws an id.
func fresh[T ~[16]byte]() T {
	id, err := frames.NewID[T](rand.Reader)
	if err != nil {
		panic("cirunner: " + err.Error()) // crypto/rand does not fail
	}
	return id
}
