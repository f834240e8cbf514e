package console

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

const (
	// actionWait is the time of an action unless the options name another.
	actionWait = 10 * time.Second
	// maxActions is how many wait at once, and maxSent how many commands are remembered so that
	// they are sent again as they were.
	maxActions = 8
	maxSent    = 1024
)

// A wish is the body of POST /api/action.
type wish struct {
	Action      string  `json:"action"`
	ID          string  `json:"id"`
	Revision    string  `json:"revision"`
	OperationID string  `json:"operation_id"`
	Note        *string `json:"note"`
}

// An outcome is what became of an action.
type outcome struct {
	OperationID string `json:"operation_id"`
	Outcome     string `json:"outcome"`
	Text        string `json:"text"`
	Code        string `json:"code,omitempty"`
	Message     string `json:"message,omitempty"`
	Next        string `json:"next,omitempty"`
	Retry       string `json:"retry"`

	// attempt says that this is about one attempt alone, and nothing about an earlier one.
	attempt bool
}

// Outcomes of an action, and what may be done about them.
const (
	committed     = "COMMITTED"
	pending       = "PENDING"
	refused       = "REFUSED"
	notSent       = "NOT_SENT"
	indeterminate = "INDETERMINATE"

	retrySame = "same"
	retryNew  = "new"
	retryNone = "none"
)

// An action is one thing that a page may do to an object.
type action struct {
	kind    frames.ObjectKind
	command frames.CommandKind
	state   frames.ObjectiveState // that an objective is given
}

var actions = map[string]action{
	"acknowledge":        {kind: frames.KindSignal, command: frames.CommandAckSignal},
	"suppress":           {kind: frames.KindSignal, command: frames.CommandSuppressSignal},
	"cancel":             {kind: frames.KindRun, command: frames.CommandCancelRun},
	"pause":              {kind: frames.KindRun, command: frames.CommandPauseRun},
	"resume":             {kind: frames.KindRun, command: frames.CommandResumeRun},
	"complete-objective": {kind: frames.KindObjective, command: frames.CommandUpdateObjective, state: frames.ObjectiveCompleted},
	"archive":            {kind: frames.KindObjective, command: frames.CommandArchiveObjective},
	"cancel-objective":   {kind: frames.KindObjective, command: frames.CommandUpdateObjective, state: frames.ObjectiveCancelled},
}

// actor sends commands. What it has sent under an OperationId it sends again as it was, since
// only the very same command is the same operation.
type actor struct {
	session *client.Session
	rand    io.Reader
	room    chan struct{} // holds an element for each action under way

	mu    sync.Mutex
	sent  map[frames.OperationID]sentCommand // guarded by mu
	order []frames.OperationID               // guarded by mu; the keys of sent, oldest first
}

type sentCommand struct {
	wish string // what it was made of
	cmd  client.Command
	last outcome // of what was answered to it so far
}

func newActor(s *client.Session, random io.Reader) *actor {
	if random == nil {
		random = rand.Reader
	}
	return &actor{session: s, rand: random, room: make(chan struct{}, maxActions), sent: map[frames.OperationID]sentCommand{}}
}

// act answers POST /api/action.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	var want wish
	if p := readBody(r, &want); p != nil {
		p.write(w)
		return
	}
	select {
	case s.actor.room <- struct{}{}:
		defer func() { <-s.actor.room }()
	default:
		(&problem{http.StatusServiceUnavailable, codeBusy, fmt.Sprintf("%d actions are under way", maxActions), "wait for them, then ask again with the same operation_id"}).write(w)
		return
	}
	cmd, p := s.actor.command(want, s.replica.View())
	if p != nil {
		p.write(w)
		return
	}
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.opts.ActionWait + answerWait)) //nolint:errcheck // a real connection has deadlines
	// A page that goes away meanwhile takes nothing back: what became of the command is
	// remembered, and the same request asks for it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), s.opts.ActionWait)
	defer cancel()
	stop := context.AfterFunc(s.ending, cancel)
	defer stop()
	result, err := s.actor.session.Do(ctx, cmd)
	out, p := judge(result, err)
	if p != nil {
		p.write(w)
		return
	}
	out.OperationID = cmd.OperationID.String()
	writeJSON(w, http.StatusOK, s.actor.told(cmd.OperationID, out))
}

// told is what a page is told of an operation, after an attempt that came to out: one that did
// nothing takes back nothing of what an earlier one did, or may have done.
func (a *actor) told(op frames.OperationID, out outcome) outcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, ok := a.sent[op]
	if !ok {
		return out
	}
	if out.attempt && e.last.Outcome != "" && !e.last.attempt {
		before := e.last
		before.Code, before.Message, before.Next, before.Retry = out.Code, "when it was asked for again: "+out.Message, "ask once more to know how it stands now", retrySame
		return before
	}
	e.last = out
	a.sent[op] = e
	return out
}

// readBody reads a JSON object of known members.
func readBody(r *http.Request, into any) *problem {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &problem{http.StatusRequestEntityTooLarge, codeTooLarge, fmt.Sprintf("the body has more than %d bytes", large.Limit), "send less"}
	case err != nil:
		return badRequest("the body is not the JSON object that it should be: "+err.Error(), "see the description of /api/ in package console")
	}
	return nil
}

// command is the command that a wish stands for: the one that was sent before under its
// OperationId, or a new one, which is remembered.
func (a *actor) command(want wish, v *client.View) (client.Command, *problem) {
	op, p := a.operation(want.OperationID)
	if p != nil {
		return client.Command{}, p
	}
	key := string(encode(want))
	a.mu.Lock()
	defer a.mu.Unlock()
	if before, ok := a.sent[op]; ok {
		if before.wish != key {
			return client.Command{}, conflict("this operation_id was used for another request")
		}
		return before.cmd, nil
	}
	cmd, p := newCommand(op, want, v)
	if p != nil {
		return client.Command{}, p
	}
	if len(a.order) >= maxSent {
		delete(a.sent, a.order[0])
		a.order = a.order[1:]
	}
	a.sent[op] = sentCommand{wish: key, cmd: cmd}
	a.order = append(a.order, op)
	return cmd, nil
}

func conflict(message string) *problem {
	return &problem{http.StatusConflict, frames.CodeOperationConflict.String(), message, "begin a new operation with an operation_id of its own"}
}

func (a *actor) operation(text string) (op frames.OperationID, p *problem) {
	var err error
	if text == "" {
		if op, err = frames.NewID[frames.OperationID](a.rand); err != nil {
			panic("console: no random numbers: " + err.Error())
		}
		return op, nil
	}
	if op, err = frames.ParseID[frames.OperationID](text); err != nil || op == (frames.OperationID{}) {
		return op, badRequest("operation_id is not 32 hex digits that say something", "choose it at random")
	}
	return op, nil
}

// newCommand makes the command of a wish. v is what an objective's document is taken from; it may
// be nil.
func newCommand(op frames.OperationID, want wish, v *client.View) (cmd client.Command, p *problem) {
	a, ok := actions[want.Action]
	if !ok {
		return cmd, badRequest(fmt.Sprintf("there is no action %q", want.Action), "load the page again")
	}
	id, err := frames.ParseID[frames.ObjectID](want.ID)
	if err != nil {
		return cmd, badRequest("id: "+err.Error(), "give the whole id")
	}
	if want.Note != nil && a.kind != frames.KindSignal {
		return cmd, badRequest("only actions on signals take a note", "leave the note out")
	}
	var pre []frames.Precondition
	if want.Revision != "" {
		n, err := strconv.ParseUint(want.Revision, 10, 64)
		if err != nil || n == 0 {
			return cmd, badRequest("revision is no decimal number above 0", "give that of the row")
		}
		pre = append(pre, frames.Precondition{Object: frames.ObjectRef{Kind: a.kind, ID: id}, Revision: n})
	}
	body, p := a.body(id, want, v)
	if p != nil {
		return cmd, p
	}
	cmd, err = client.NewCommand(op, a.command, body, pre...)
	if err != nil {
		return cmd, badRequest(err.Error(), "make it shorter")
	}
	return cmd, nil
}

// body is the command's payload.
func (a action) body(id frames.ObjectID, want wish, v *client.View) (codec.Message, *problem) {
	switch a.kind {
	case frames.KindSignal:
		return &frames.SignalCommand{SignalID: frames.SignalID(id), Note: want.Note}, nil
	case frames.KindRun:
		return &frames.RunCommand{RunID: frames.RunID(id)}, nil
	}
	if want.Revision == "" {
		return nil, badRequest("an action on an objective needs its revision", "give that of the row")
	}
	if a.command == frames.CommandArchiveObjective {
		return &frames.ArchiveObjective{ObjectiveID: frames.ObjectiveID(id)}, nil
	}
	// The document is sent back as it stands, at the revision at which it was read.
	var r *client.Record
	if v != nil {
		r = v.Get(frames.KindObjective, id)
	}
	if r == nil {
		return nil, absent("objective", want.ID)
	}
	if decimal(r.Revision()) != want.Revision {
		return nil, &problem{http.StatusConflict, frames.CodeRevisionConflict.String(),
			fmt.Sprintf("the objective is at revision %d and not at %s any more", r.Revision(), want.Revision), "look at it as it is now, then decide"}
	}
	o := v.Objective(frames.ObjectiveID(id))
	if o == nil {
		return nil, badRequest("the objective is of a schema that this program does not know", "use the coordctl that belongs to the coordinator")
	}
	state := a.state
	return &frames.UpdateObjective{ObjectiveID: frames.ObjectiveID(id), Schema: o.DocumentSchema, Document: o.Document, State: &state}, nil
}

func absent(kind, id string) *problem {
	return &problem{http.StatusNotFound, codeNotFound, "no " + kind + " " + id + " is in the view of this key", "it may have been archived, or the view is not there yet: look at the state on top"}
}

// judge words what became of a command. A problem is what was no command to begin with.
func judge(r frames.OperationResult, err error) (out outcome, p *problem) {
	var (
		unknown *client.OutcomeUnknownError
		lost    *client.IndeterminateError
		other   *client.OtherCommandError
		denied  *client.RefusedError
	)
	switch {
	case err == nil:
		return result(r), nil
	case errors.As(err, &other):
		return out, conflict(other.Error())
	case errors.As(err, &lost):
		return outcome{Outcome: indeterminate, Text: "it may have been done: the history in which it may have run was lost", Message: lost.Error(),
			Next: "look at the object, then decide on a new operation", Retry: retryNone}, nil
	case errors.As(err, &unknown):
		return outcome{Outcome: indeterminate, Text: "no answer came: it may have been done, or not", Message: unknown.Cause.Error(),
			Next: "ask again: the same operation never runs twice", Retry: retrySame}, nil
	case errors.As(err, &denied) && denied.Code == frames.CodeOperationConflict:
		return out, conflict(denied.Error())
	case errors.As(err, &denied):
		return refusal(denied), nil
	case errors.As(err, new(*client.AuthenticationError)):
		return outcome{Outcome: notSent, Text: "it was not done: the coordinator does not accept this key", Code: frames.CodeAuthenticationFailed.String(),
			Message: err.Error(), Next: "enrol the key with coordinatord keys, then start the console again", Retry: retryNone, attempt: true}, nil
	case errors.Is(err, client.ErrNotSent):
		return outcome{Outcome: notSent, Text: "it was not done: the coordinator was not reached", Message: err.Error(), Next: "try again once the coordinator is back", Retry: retrySame, attempt: true}, nil
	}
	return outcome{Outcome: indeterminate, Text: "it may have been done, or not", Message: err.Error(), Next: "ask again: the same operation never runs twice", Retry: retrySame}, nil
}

// result words the result of an operation.
func result(r frames.OperationResult) outcome {
	state := r.State
	if state == frames.OperationTombstoned {
		state = r.Final
	}
	switch state {
	case frames.OperationSucceeded:
		return outcome{Outcome: committed, Text: "it is done", Retry: retryNone}
	case frames.OperationPending:
		return outcome{Outcome: pending, Text: "it is admitted and takes effect at the owner", Next: "its row in the operations tells the end", Retry: retrySame}
	case frames.OperationRejected:
		return outcome{Outcome: refused, Text: "the coordinator decided against it; nothing was changed", Code: r.Code.String(), Message: r.Message,
			Next: advice(r.Code), Retry: retryNew}
	}
	return outcome{Outcome: indeterminate, Text: "nobody can prove whether it took effect", Message: fmt.Sprintf("%v %v", r.State, r.Reason),
		Next: "look at the object, then decide on a new operation", Retry: retryNone}
}

// refusal words a COORD_ERROR: nothing was done, and nothing is remembered of it.
func refusal(e *client.RefusedError) outcome {
	out := outcome{Outcome: refused, Text: "the coordinator refused it; nothing was done", Code: e.Code.String(), Message: e.Message, Next: advice(e.Code), Retry: retryNew, attempt: true}
	switch e.Code {
	case frames.CodeResourceExhausted, frames.CodeAuthorityFenced, frames.CodeStaleAuthority, frames.CodeScopeDenied:
		out.Retry = retrySame
	}
	return out
}

// advice is what to do about a code.
func advice(c frames.Code) string {
	switch c {
	case frames.CodeScopeDenied:
		return "enrol this key with the scope that the command needs: coordinatord keys --state DIR add --scope …"
	case frames.CodeResourceExhausted:
		return "wait until others finish, make room on the coordinator's disk, or raise the quota in coordinator.toml"
	case frames.CodeRevisionConflict:
		return "look at the object as it is now, then decide"
	case frames.CodeAuthorityFenced, frames.CodeStaleAuthority:
		return "another coordinator takes over; try again"
	case frames.CodeNotFound:
		return "it may have been archived, or this key may not see it"
	case frames.CodeCapabilityRequired:
		return "the running coordinator does not offer what this needs"
	}
	return "the message says what is wrong with it"
}
