package console

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"unicode/utf8"

	"coordinator/client"
	"coordinator/cmd/internal/overview"
	"coordinator/cmd/internal/runs"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/text"
)

// A document is what a client chose the bytes of: as JSON where it is that, else in base64.
type document struct {
	Document json.RawMessage `json:"document,omitempty"`
	Base64   string          `json:"document_base64,omitempty"`
}

func documentOf(b []byte) document {
	if len(b) > 0 && utf8.Valid(b) && json.Valid(b) {
		return document{Document: b}
	}
	return document{Base64: base64.StdEncoding.EncodeToString(b)}
}

// view is the view as it now stands. Before there is one, a problem says so.
func (s *Server) view() (*client.View, *problem) {
	if v := s.replica.View(); v != nil {
		return v, nil
	}
	return nil, &problem{http.StatusBadGateway, codeUnavailable, "there is no view of the coordinator yet: " + s.replica.State().String(), "wait until it is reached"}
}

// pathID is the id in a path.
func pathID[T ~[16]byte](r *http.Request, name string) (id T, p *problem) {
	id, err := frames.ParseID[T](r.PathValue(name))
	if err != nil {
		return id, badRequest(name+": "+err.Error(), "give the whole id")
	}
	return id, nil
}

// A lookup answers a GET with what it finds, or with a problem.
type lookup func(w http.ResponseWriter, r *http.Request) (any, *problem)

// ServeHTTP implements [http.Handler].
func (f lookup) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out, p := f(w, r)
	if p != nil {
		p.write(w)
		return
	}
	writeJSON(w, http.StatusOK, out)
}

// objective answers GET /api/objective/{id}.
func (s *Server) objective(_ http.ResponseWriter, r *http.Request) (any, *problem) {
	id, p := pathID[frames.ObjectiveID](r, "id")
	if p != nil {
		return nil, p
	}
	v, p := s.view()
	if p != nil {
		return nil, p
	}
	record, o := v.Get(frames.KindObjective, frames.ObjectID(id)), v.Objective(id)
	if o == nil {
		return nil, absent("objective", id.String())
	}
	type detail struct {
		head
		Title  string `json:"title"`
		Schema uint16 `json:"document_schema"`
		document
	}
	out := struct {
		Objective  detail                `json:"objective"`
		Runs       []*overview.Run       `json:"runs"`
		Operations []*overview.Operation `json:"operations"`
	}{Objective: detail{headOf(record, o.State.String()), text.Inert(overview.Title(o.Document)), o.DocumentSchema, documentOf(o.Document)}}
	members := map[string]bool{id.String(): true}
	s.live.with(func(t *tables) {
		out.Runs = t.runs.list(func(run *overview.Run) bool { return run.ObjectiveID == id.String() })
		for _, run := range out.Runs {
			members[run.ID] = true
		}
		out.Operations = t.operations.list(about(members))
	})
	return out, nil
}

// about is true of the operations that made or changed one of some objects.
func about(objects map[string]bool) func(*overview.Operation) bool {
	return func(op *overview.Operation) bool { return op.Object != nil && objects[op.Object.ID] }
}

// A head is what every record has.
type head struct {
	ID       string `json:"id"`
	Revision string `json:"revision"`
	State    string `json:"state,omitempty"`
}

func headOf(r *client.Record, state string) head {
	return head{r.ID().String(), decimal(r.Revision()), state}
}

// An exit is how a run's process ended.
type exit struct {
	Known  bool   `json:"known"`
	Status *int32 `json:"status,omitempty"`
	Signal *int32 `json:"signal,omitempty"`
	Text   string `json:"text"`
}

// exitOf reads a run's outcome; nil where there is none.
func exitOf(outcome []byte) *exit {
	var c frames.Closed
	if outcome == nil || codec.DecodeImage(&c, outcome) != nil {
		return nil
	}
	e := &exit{Known: c.Known, Text: "exit status " + runs.StatusWord(c.Known, c.Status)}
	switch {
	case c.Known && c.Status < 0:
		signal := -c.Status
		e.Signal, e.Text = &signal, runs.StatusWord(true, c.Status)
	case c.Known:
		e.Status = &c.Status
	}
	return e
}

type runDetail struct {
	head
	ObjectiveID string `json:"objective_id"`
	Title       string `json:"objective_title"`
	Attempt     uint32 `json:"attempt"`
	Exit        *exit  `json:"exit,omitempty"`
}

type sessionDetail struct {
	head
	Active string `json:"active_binding,omitempty"`
}

type bindingDetail struct {
	head
	SessionID   string `json:"work_session_id"`
	EndReason   string `json:"end_reason,omitempty"`
	Owner       string `json:"owner"`
	OwnerName   string `json:"owner_name,omitempty"`
	Incarnation string `json:"owner_incarnation"`
	Resource    string `json:"resource_id"`
	Host        string `json:"resource_host,omitempty"`
}

type artifactDetail struct {
	head
	SessionID string          `json:"work_session_id"`
	Latest    string          `json:"latest_revision"`
	Manifest  *manifestDetail `json:"manifest,omitempty"`
}

type manifestDetail struct {
	Revision string `json:"revision"`
	Schema   uint16 `json:"schema"`
	Bytes    string `json:"bytes"`
	document
}

type evidenceDetail struct {
	BindingID string `json:"binding_id"`
	Revision  string `json:"revision"`
	SessionID string `json:"work_session_id"`
	Artifact  string `json:"artifact_id"`
	Seal      string `json:"seal_sha256"`
}

type outputDetail struct {
	Stream string `json:"stream"`
	Live   bool   `json:"live"`
}

type runAnswer struct {
	Run        runDetail             `json:"run"`
	Sessions   []sessionDetail       `json:"sessions"`
	Bindings   []bindingDetail       `json:"bindings"`
	Artifacts  []artifactDetail      `json:"artifacts"`
	Evidence   []evidenceDetail      `json:"evidence"`
	Outputs    []outputDetail        `json:"outputs"`
	Signals    []*overview.Signal    `json:"signals"`
	Operations []*overview.Operation `json:"operations"`
}

// run answers GET /api/run/{id}.
func (s *Server) run(_ http.ResponseWriter, r *http.Request) (any, *problem) {
	id, p := pathID[frames.RunID](r, "id")
	if p != nil {
		return nil, p
	}
	v, p := s.view()
	if p != nil {
		return nil, p
	}
	record, run := v.Get(frames.KindRun, frames.ObjectID(id)), v.Run(id)
	if run == nil {
		return nil, absent("run", id.String())
	}
	out := &runAnswer{Run: runDetail{headOf(record, run.State.String()), run.ObjectiveID.String(), "", run.Attempt, exitOf(run.Outcome)},
		Sessions: []sessionDetail{}, Bindings: []bindingDetail{}, Artifacts: []artifactDetail{}, Evidence: []evidenceDetail{}, Outputs: []outputDetail{}}
	if o := v.Objective(run.ObjectiveID); o != nil {
		out.Run.Title = text.Inert(overview.Title(o.Document))
	}
	members := map[string]bool{id.String(): true}
	for r := range v.SessionsOf(id) {
		members[r.ID().String()] = true
		s.workSession(out, v, r, members)
	}
	s.live.with(func(t *tables) {
		out.Signals = t.signals.list(func(sig *overview.Signal) bool { return sig.RunID == id.String() })
		for _, sig := range out.Signals {
			members[sig.ID] = true
		}
		out.Operations = t.operations.list(about(members))
	})
	return out, nil
}

// workSession adds what belongs to one work session of a run.
func (s *Server) workSession(out *runAnswer, v *client.View, r *client.Record, members map[string]bool) {
	id := frames.WorkSessionID(r.ID())
	w := v.WorkSession(id)
	if w == nil {
		return
	}
	d := sessionDetail{head: headOf(r, w.State.String())}
	if w.ActiveBinding != (frames.BindingID{}) {
		d.Active = w.ActiveBinding.String()
	}
	out.Sessions = append(out.Sessions, d)
	for r := range v.BindingsOf(id) {
		if b := v.Binding(frames.BindingID(r.ID())); b != nil {
			members[r.ID().String()] = true
			out.Bindings = append(out.Bindings, s.binding(r, b))
			out.Outputs = append(out.Outputs, outputDetail{r.ID().String(), b.State == frames.StateActive})
		}
	}
	for r := range v.ArtifactsOf(id) {
		if a := v.Artifact(frames.ArtifactID(r.ID())); a != nil {
			members[r.ID().String()] = true
			out.Artifacts = append(out.Artifacts, artifactDetail{headOf(r, ""), id.String(), decimal(a.LatestRevision), manifestOf(v, r.ID())})
		}
	}
	for r := range v.EvidenceOf(id) {
		if e := v.Evidence(frames.BindingID(r.ID())); e != nil {
			out.Evidence = append(out.Evidence, evidenceDetail{r.ID().String(), decimal(r.Revision()), id.String(), e.ArtifactID.String(), hex.EncodeToString(e.Seal[:])})
		}
	}
}

func (s *Server) binding(r *client.Record, b *frames.Binding) bindingDetail {
	d := bindingDetail{head: headOf(r, b.State.String()), SessionID: b.Binding.WorkSessionID.String(), Owner: b.Binding.Owner.String(),
		Incarnation: b.Binding.OwnerIncarnation.String(), Resource: decimal(b.Binding.Resource.ID), Host: text.Inert(b.Binding.Resource.Host)}
	if b.Reason != nil {
		d.EndReason = b.Reason.String()
	}
	if o, err := runs.OwnerNamed(s.opts.Context, b.Binding.Owner); err == nil {
		d.OwnerName = o.Name
	}
	return d
}

// manifestOf is the manifest of an artifact, nil where there is none to be seen. An evidence
// manifest is shown in its members.
func manifestOf(v *client.View, artifact frames.ObjectID) *manifestDetail {
	for r := range v.Below(artifact, frames.KindArtifactManifest) {
		p, err := r.Decode()
		m, ok := p.(*frames.ArtifactManifest)
		if err != nil || !ok {
			return nil
		}
		return &manifestDetail{decimal(m.Revision), m.Schema, decimal(uint64(len(m.Manifest))), documentOf(m.Manifest)}
	}
	return nil
}

// signal answers GET /api/signal/{id}.
func (s *Server) signal(_ http.ResponseWriter, r *http.Request) (any, *problem) {
	id, p := pathID[frames.SignalID](r, "id")
	if p != nil {
		return nil, p
	}
	v, p := s.view()
	if p != nil {
		return nil, p
	}
	record, sig := v.Get(frames.KindSignal, frames.ObjectID(id)), v.Signal(id)
	if sig == nil {
		return nil, absent("signal", id.String())
	}
	out := struct {
		head
		Kind        string `json:"kind"`
		Message     string `json:"message"`
		SessionID   string `json:"work_session_id"`
		RunID       string `json:"run_id,omitempty"`
		ObjectiveID string `json:"objective_id,omitempty"`
	}{head: headOf(record, sig.State.String()), Kind: runs.SignalName(sig.Kind), Message: text.Inert(sig.Message), SessionID: sig.WorkSessionID.String()}
	if w := v.WorkSession(sig.WorkSessionID); w != nil {
		out.RunID = w.RunID.String()
		if run := v.Run(w.RunID); run != nil {
			out.ObjectiveID = run.ObjectiveID.String()
		}
	}
	return map[string]any{"signal": out}, nil
}

type operationDetail struct {
	ID         string           `json:"id"`
	State      string           `json:"state"`
	Text       string           `json:"text"`
	Principal  string           `json:"principal_key_id,omitempty"`
	Object     *overview.Object `json:"object,omitempty"`
	RunID      string           `json:"run_id,omitempty"`
	Code       string           `json:"code,omitempty"`
	Message    string           `json:"message,omitempty"`
	Reason     string           `json:"reason,omitempty"`
	Completed  string           `json:"completed_event_sequence,omitempty"`
	Unresolved bool             `json:"unresolved"`
}

// operation answers GET /api/operation/{id}: of the view, or of the coordinator where the view
// does not have it.
func (s *Server) operation(w http.ResponseWriter, r *http.Request) (any, *problem) {
	id, p := pathID[frames.OperationID](r, "id")
	if p != nil {
		return nil, p
	}
	out := operationDetail{ID: id.String()}
	var result frames.OperationResult
	var known *frames.Operation
	if v := s.replica.View(); v != nil {
		known = v.Operation(id)
	}
	if known != nil {
		out.Principal, result = known.Principal.String(), known.Result
	} else {
		ctx, cancel := s.within(w, r, s.opts.ActionWait)
		defer cancel()
		var err error
		if result, err = s.actor.session.Lookup(ctx, id); err != nil {
			return nil, unavailable(err)
		}
	}
	out.result(result)
	for _, u := range s.opts.State.Unresolved() {
		out.Unresolved = out.Unresolved || u.OperationID == id
	}
	return map[string]any{"operation": out}, nil
}

// result lays a result out.
func (d *operationDetail) result(r frames.OperationResult) {
	d.State, d.Text = r.State.String(), text.Inert(overview.ResultText(r))
	switch r.State {
	case frames.OperationSucceeded:
		d.Completed = decimal(r.Sequence)
	case frames.OperationRejected:
		d.Completed, d.Code, d.Message = decimal(r.Sequence), r.Code.String(), text.Inert(r.Message)
	case frames.OperationIndeterminate:
		d.Reason = r.Reason.String()
	case frames.OperationUnknown:
		d.Text = "this authority knows no such operation, or this key may not see it; that never proves that nothing ran"
	}
	if ref, ok := overview.ResultObject(r); ok {
		d.Object = &overview.Object{Kind: ref.Kind.String(), ID: ref.ID.String()}
		if ref.Kind == frames.KindRun {
			d.RunID = ref.ID.String()
		}
	}
}
