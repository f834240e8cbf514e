package mcp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/frames"
	"coordinator/owner"
)

func (s *Server) addWrites() {
	add(s, spec{name: "create_objective", title: "Create an objective", write: true, about: "Create an objective, which runs are started for."}, unbounded(s.createObjective))
	add(s, spec{name: "update_objective", title: "Update an objective", write: true, destructive: true, about: "Replace an objective's document. With title alone the other members stay as they are."}, unbounded(s.updateObjective))
	add(s, spec{name: "complete_objective", title: "Complete an objective", write: true, again: true, about: "Mark an objective Completed; its document stays as it is. It cannot be made Active again."},
		unbounded(s.endObjective("complete_objective", frames.ObjectiveCompleted)))
	add(s, spec{name: "cancel_objective", title: "Cancel an objective", write: true, destructive: true, again: true, about: "Mark an objective Cancelled; its document stays as it is. Its runs go on unless they are cancelled. It cannot be made Active again."},
		unbounded(s.endObjective("cancel_objective", frames.ObjectiveCancelled)))
	add(s, spec{name: "start_run", title: "Start a run", write: true, destructive: true, about: "Start a command on a terminal of a process owner, for an objective. The command is run as it stands, without a shell, and goes on whatever becomes of this connection, this server or the coordinator. " +
		"It is started once or not at all; in doubt the outcome says UNKNOWN or INDETERMINATE. Nobody types on its standard input. Secrets in env are kept by the coordinator's owner and beside the context file."}, unbounded(s.startRun))
	add(s, spec{name: "cancel_run", title: "Cancel a run", write: true, destructive: true, again: true, about: "Cancel a run: its process gets SIGTERM and, when its grace is over, SIGKILL; a run that has no process yet never gets one."},
		unbounded(s.onRun("cancel_run", frames.CommandCancelRun)))
	add(s, spec{name: "pause_run", title: "Pause a run", write: true, again: true, about: "Pause a run: its state only, its process goes on."}, unbounded(s.onRun("pause_run", frames.CommandPauseRun)))
	add(s, spec{name: "resume_run", title: "Resume a run", write: true, again: true, about: "Resume a paused run."}, unbounded(s.onRun("resume_run", frames.CommandResumeRun)))
	add(s, spec{name: "acknowledge_signal", title: "Acknowledge a signal", write: true, again: true, about: "Acknowledge an open signal: somebody has seen it."},
		unbounded(s.onSignal("acknowledge_signal", frames.CommandAckSignal)))
	add(s, spec{name: "suppress_signal", title: "Suppress a signal", write: true, again: true, about: "Suppress a signal, open or acknowledged: it asks for nothing any more."},
		unbounded(s.onSignal("suppress_signal", frames.CommandSuppressSignal)))
	add(s, spec{name: "register_artifact", title: "Register an artifact", write: true, about: "Register a manifest: with run_id as revision 1 of a new artifact of that run, with artifact_id as the next revision of one that exists. The coordinator keeps the manifest's bytes and does not look into them."}, unbounded(s.registerArtifact))
}

// unbounded is a call that bounds itself.
func unbounded[In, Out any](call func(context.Context, In) (Out, error)) func(context.Context, *sdk.CallToolRequest, In) (Out, error) {
	return func(ctx context.Context, _ *sdk.CallToolRequest, in In) (Out, error) { return call(ctx, in) }
}

type createObjectiveIn struct {
	Title       string `json:"title" jsonschema:"what the objective is called"`
	Document    string `json:"document,omitempty" jsonschema:"more about it: one JSON object as text, whose title member is replaced by title"`
	OperationID string `json:"operation_id,omitempty" jsonschema:"from new_operation_id, or of the call that is repeated; a new one if left out"`
}

func (s *Server) createObjective(ctx context.Context, in createObjectiveIn) (Outcome, error) {
	opText := in.OperationID
	in.OperationID = ""
	document, err := makeDocument(in.Title, in.Document)
	if err != nil {
		return Outcome{}, err
	}
	return s.mutate(ctx, "create_objective", opText, in, func(_ context.Context, op frames.OperationID) (client.Command, error) {
		return client.NewCommand(op, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: s.derive(op, "objective"), Schema: 1, Document: document})
	})
}

// makeDocument is a document with a title. Its bytes depend on the arguments alone.
func makeDocument(title, document string) ([]byte, error) {
	members := map[string]json.RawMessage{}
	if document != "" {
		if err := json.Unmarshal([]byte(document), &members); err != nil || members == nil {
			return nil, badArgument("document must be one JSON object as text")
		}
	}
	if title != "" {
		text, err := json.Marshal(title)
		if err != nil {
			return nil, err
		}
		members["title"] = text
	}
	var have string
	if json.Unmarshal(members["title"], &have) != nil || have == "" {
		return nil, badArgument("title must not be empty")
	}
	return fits(json.Marshal(members))
}

// fits refuses what a coordinator does not carry.
func fits(b []byte, err error) ([]byte, error) {
	if most := int(frames.ReferenceLimits().TypedPayload) - commandRest; err == nil && len(b) > most {
		return nil, badArgument("it takes %d bytes, a coordinator carries %d at most", len(b), most)
	}
	return b, err
}

// commandRest is more than any command takes beside its document.
const commandRest = 1 << 10

type updateObjectiveIn struct {
	ObjectiveID string `json:"objective_id"`
	Title       string `json:"title,omitempty" jsonschema:"the new title"`
	Document    string `json:"document,omitempty" jsonschema:"the whole new document: one JSON object as text"`
	IfRevision  uint64 `json:"if_revision,omitempty" jsonschema:"only if the objective is at this revision"`
	OperationID string `json:"operation_id,omitempty" jsonschema:"from new_operation_id, or of the call that is repeated; a new one if left out"`
}

func (s *Server) updateObjective(ctx context.Context, in updateObjectiveIn) (Outcome, error) {
	opText := in.OperationID
	in.OperationID = ""
	oid, err := id[frames.ObjectiveID]("objective_id", in.ObjectiveID)
	if err != nil {
		return Outcome{}, err
	}
	if in.Title == "" && in.Document == "" {
		return Outcome{}, badArgument("give title, document or both")
	}
	return s.mutate(ctx, "update_objective", opText, in, func(ctx context.Context, op frames.OperationID) (client.Command, error) {
		o, revision, err := s.objective(ctx, oid)
		if err != nil {
			return client.Command{}, err
		}
		body := &frames.UpdateObjective{ObjectiveID: oid, Schema: o.DocumentSchema}
		old := in.Document
		if old == "" {
			old = string(o.Document)
		}
		if body.Document, err = makeDocument(in.Title, old); err != nil {
			return client.Command{}, err
		}
		return client.NewCommand(op, frames.CommandUpdateObjective, body, at(oid, revision, in.IfRevision))
	})
}

// objective is an objective as a current view has it, and its revision.
func (s *Server) objective(ctx context.Context, oid frames.ObjectiveID) (*frames.Objective, uint64, error) {
	v, err := s.currentView(ctx)
	if err != nil {
		return nil, 0, err
	}
	o, r := v.Objective(oid), v.Get(frames.KindObjective, frames.ObjectID(oid))
	if o == nil || r == nil {
		return nil, 0, notFound(frames.KindObjective, oid)
	}
	return o, uint64(r.Revision()), nil
}

// at is the precondition that an objective is as it was read, or as the caller wants it:
// somebody else's change in between is a conflict and not lost.
func at(oid frames.ObjectiveID, read, wanted uint64) frames.Precondition {
	if wanted != 0 {
		read = wanted
	}
	return frames.Precondition{Object: runs.Ref(frames.KindObjective, oid), Revision: read}
}

type endObjectiveIn struct {
	ObjectiveID string `json:"objective_id"`
	IfRevision  uint64 `json:"if_revision,omitempty" jsonschema:"only if the objective is at this revision"`
	OperationID string `json:"operation_id,omitempty" jsonschema:"from new_operation_id, or of the call that is repeated; a new one if left out"`
}

func (s *Server) endObjective(tool string, state frames.ObjectiveState) func(context.Context, endObjectiveIn) (Outcome, error) {
	return func(ctx context.Context, in endObjectiveIn) (Outcome, error) {
		opText := in.OperationID
		in.OperationID = ""
		oid, err := id[frames.ObjectiveID]("objective_id", in.ObjectiveID)
		if err != nil {
			return Outcome{}, err
		}
		return s.mutate(ctx, tool, opText, in, func(ctx context.Context, op frames.OperationID) (client.Command, error) {
			o, revision, err := s.objective(ctx, oid)
			if err != nil {
				return client.Command{}, err
			}
			return client.NewCommand(op, frames.CommandUpdateObjective,
				&frames.UpdateObjective{ObjectiveID: oid, Schema: o.DocumentSchema, Document: o.Document, State: &state}, at(oid, revision, in.IfRevision))
		})
	}
}

type startRunIn struct {
	ObjectiveID string            `json:"objective_id"`
	Argv        []string          `json:"argv" jsonschema:"the program and its arguments; for shell syntax use sh -c"`
	Cwd         string            `json:"cwd,omitempty" jsonschema:"the absolute directory to run in, on the owner's machine; this server's own if left out"`
	Env         map[string]string `json:"env,omitempty" jsonschema:"added to the environment that the owner gives every process"`
	Grace       *uint32           `json:"grace_seconds,omitempty" jsonschema:"between SIGTERM and SIGKILL when the run is cancelled; 5 if left out, 3600 at most"`
	Owner       string            `json:"owner,omitempty" jsonschema:"the name of the process owner, where status lists several"`
	Group       uint32            `json:"group,omitempty" jsonschema:"the owner's terminal group; its first if left out"`
	OperationID string            `json:"operation_id,omitempty" jsonschema:"from new_operation_id, or of the call that is repeated; a new one if left out"`
}

func (s *Server) startRun(ctx context.Context, in startRunIn) (Outcome, error) {
	opText := in.OperationID
	in.OperationID = ""
	oid, err := id[frames.ObjectiveID]("objective_id", in.ObjectiveID)
	if err != nil {
		return Outcome{}, err
	}
	document, err := s.execution(in)
	if err != nil {
		return Outcome{}, err
	}
	return s.mutate(ctx, "start_run", opText, in, func(ctx context.Context, op frames.OperationID) (client.Command, error) {
		if _, _, err := s.objective(ctx, oid); err != nil { // so that NOT_FOUND from here on is about the owner
			return client.Command{}, err
		}
		o, err := s.opts.Context.FindOwner(in.Owner)
		if err != nil {
			return client.Command{}, err
		}
		body := &frames.StartRun{ObjectiveID: oid, RunID: s.derive(op, "run"), WorkSessionID: s.derive(op, "session"), PendingBindingID: s.derive(op, "binding"),
			ExecutorSchema: owner.ExecutorSchema, ExecutorDocument: document, Owner: o.Authority}
		if err := s.place(ctx, o, in.Group, body); err != nil {
			return client.Command{}, err
		}
		return client.NewCommand(op, frames.CommandStartRun, body)
	})
}

// execution is what the owner is to run. It refuses here what the owner would refuse.
func (s *Server) execution(in startRunIn) ([]byte, error) {
	d := owner.Document{Argv: in.Argv, Cwd: in.Cwd, Env: in.Env, GraceSecs: in.Grace}
	if d.Cwd == "" {
		d.Cwd = s.opts.Cwd
	}
	if !filepath.IsAbs(d.Cwd) {
		return nil, badArgument("cwd must be an absolute path: the owner has a working directory of its own")
	}
	raw, err := d.Encode()
	if err == nil {
		_, err = owner.ParseDocument(raw)
	}
	if err != nil {
		return nil, badArgument("the command cannot be run: %v", err)
	}
	return fits(raw, nil)
}

// place asks the owner who it is now and where it would run the command.
func (s *Server) place(ctx context.Context, o client.Owner, group uint32, body *frames.StartRun) error {
	link, err := runs.DialOwner(ctx, s.opts.Context, s.key, o, "coordctl mcp")
	if err != nil {
		return err
	}
	groups := link.Groups()
	body.OwnerIncarnation, body.Group = link.Incarnation(), groups[0]
	if err := link.Close(); err != nil {
		return err
	}
	if group != 0 {
		if body.Group = frames.GroupID(group); !slices.Contains(groups, body.Group) {
			return badArgument("group is %d; owner %s serves %v", group, o.Name, groups)
		}
	}
	return nil
}

type onRunIn struct {
	RunID       string `json:"run_id"`
	OperationID string `json:"operation_id,omitempty" jsonschema:"from new_operation_id, or of the call that is repeated; a new one if left out"`
}

func (s *Server) onRun(tool string, kind frames.CommandKind) func(context.Context, onRunIn) (Outcome, error) {
	return func(ctx context.Context, in onRunIn) (Outcome, error) {
		opText := in.OperationID
		in.OperationID = ""
		rid, err := id[frames.RunID]("run_id", in.RunID)
		if err != nil {
			return Outcome{}, err
		}
		return s.mutate(ctx, tool, opText, in, func(_ context.Context, op frames.OperationID) (client.Command, error) {
			return client.NewCommand(op, kind, &frames.RunCommand{RunID: rid})
		})
	}
}

type onSignalIn struct {
	SignalID    string `json:"signal_id"`
	Note        string `json:"note,omitempty" jsonschema:"text that goes with it, at most 1024 bytes"`
	OperationID string `json:"operation_id,omitempty" jsonschema:"from new_operation_id, or of the call that is repeated; a new one if left out"`
}

func (s *Server) onSignal(tool string, kind frames.CommandKind) func(context.Context, onSignalIn) (Outcome, error) {
	return func(ctx context.Context, in onSignalIn) (Outcome, error) {
		opText := in.OperationID
		in.OperationID = ""
		sid, err := id[frames.SignalID]("signal_id", in.SignalID)
		if err != nil {
			return Outcome{}, err
		}
		if len(in.Note) > frames.MaxText {
			return Outcome{}, badArgument("note has %d bytes; at most %d", len(in.Note), frames.MaxText)
		}
		body := &frames.SignalCommand{SignalID: sid}
		if in.Note != "" {
			body.Note = &in.Note
		}
		return s.mutate(ctx, tool, opText, in, func(_ context.Context, op frames.OperationID) (client.Command, error) {
			return client.NewCommand(op, kind, body)
		})
	}
}

type registerArtifactIn struct {
	RunID       string `json:"run_id,omitempty" jsonschema:"the run that a new artifact belongs to"`
	ArtifactID  string `json:"artifact_id,omitempty" jsonschema:"the artifact whose next revision this is"`
	Manifest    string `json:"manifest,omitempty" jsonschema:"the manifest as text"`
	Base64      string `json:"manifest_base64,omitempty" jsonschema:"the manifest as base64, where it is no text"`
	Schema      uint16 `json:"schema,omitempty" jsonschema:"what the manifest's bytes mean to those who read it; 1 if left out"`
	OperationID string `json:"operation_id,omitempty" jsonschema:"from new_operation_id, or of the call that is repeated; a new one if left out"`
}

func (in *registerArtifactIn) manifest() ([]byte, error) {
	switch {
	case (in.RunID == "") == (in.ArtifactID == ""):
		return nil, badArgument("give run_id for a new artifact, or artifact_id for the next revision of one")
	case (in.Manifest == "") == (in.Base64 == ""):
		return nil, badArgument("give manifest or manifest_base64")
	case in.Base64 == "":
		return fits([]byte(in.Manifest), nil)
	}
	raw, err := base64.StdEncoding.DecodeString(in.Base64)
	if err != nil {
		return nil, badArgument("manifest_base64 is not base64")
	}
	return fits(raw, nil)
}

func (s *Server) registerArtifact(ctx context.Context, in registerArtifactIn) (Outcome, error) {
	opText := in.OperationID
	in.OperationID = ""
	manifest, err := in.manifest()
	if err != nil {
		return Outcome{}, err
	}
	return s.mutate(ctx, "register_artifact", opText, in, func(ctx context.Context, op frames.OperationID) (client.Command, error) {
		v, err := s.currentView(ctx)
		if err != nil {
			return client.Command{}, err
		}
		body := &frames.RegisterArtifactManifest{ArtifactID: s.derive(op, "artifact"), Revision: 1, Schema: max(in.Schema, 1), Manifest: manifest}
		var pre []frames.Precondition
		if in.ArtifactID != "" {
			err = nextRevision(v, in.ArtifactID, body)
		} else {
			pre, err = sessionOf(v, in.RunID)
		}
		if err != nil {
			return client.Command{}, err
		}
		return client.NewCommand(op, frames.CommandRegisterArtifactManifest, body, pre...)
	})
}

func nextRevision(v *client.View, text string, body *frames.RegisterArtifactManifest) error {
	aid, err := id[frames.ArtifactID]("artifact_id", text)
	if err != nil {
		return err
	}
	a := v.Artifact(aid)
	if a == nil {
		return notFound(frames.KindArtifact, aid)
	}
	body.ArtifactID, body.Revision = aid, a.LatestRevision+1
	return nil
}

// sessionOf is the precondition that names the work session which a new artifact belongs to.
func sessionOf(v *client.View, text string) ([]frames.Precondition, error) {
	rid, err := id[frames.RunID]("run_id", text)
	if err != nil {
		return nil, err
	}
	if v.Run(rid) == nil {
		return nil, notFound(frames.KindRun, rid)
	}
	var pre []frames.Precondition
	for session := range v.SessionsOf(rid) {
		pre = append(pre, frames.Precondition{Object: session.Ref(), Revision: uint64(session.Revision())})
	}
	if len(pre) != 1 {
		return nil, &Problem{Code: frames.CodeNotFound.String(), What: fmt.Sprintf("run %v has %s, and an artifact belongs to one", rid, runs.Plural(len(pre), "work session")),
			Next: []string{"register it for a run that was started"}}
	}
	return pre, nil
}
