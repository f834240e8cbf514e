package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"coordinator/cmd/internal/overview"
	"coordinator/cmd/internal/runs"
	"coordinator/cmd/internal/term"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/text"
)

// An object is a JSON object whose members keep their order. Names are the protocol's.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// emit prints one value in the format that was asked for, which is not for people.
func (a *app) emit(v any) error { return a.output.Value(a.stdout, v) }

// emitItem is emit for one value of a stream: a line where it is JSON.
func (a *app) emitItem(v any) error { return a.output.Item(a.stdout, v) }

// emitList is emit for a list.
func (a *app) emitList(rows []object) error {
	l := a.output.List(a.stdout)
	for _, r := range rows {
		if err := l.Add(r); err != nil {
			return err
		}
	}
	return l.Close()
}

// writeMembers prints an object as two aligned columns.
func writeMembers(w io.Writer, paint term.Paint, o object) error {
	t := term.NewTable(w)
	for _, m := range o {
		fmt.Fprintf(t, "%s\t%s\n", m.name, paintedCell(paint, m))
	}
	return t.Flush()
}

// paintedCell is cell, with the word of a state painted.
func paintedCell(paint term.Paint, m member) string {
	if m.name == "state" || m.name == "final_state" || m.name == "verdict" {
		return paint.State(cell(m.value))
	}
	return cell(m.value)
}

// cell is a value in one line of text.
func cell(v any) string {
	switch v := v.(type) {
	case string:
		return printable(v)
	case json.RawMessage:
		return printable(string(v))
	case object:
		if len(v) == 2 && v[0].name == "kind" && v[1].name == "id" {
			return cell(v[0].value) + " " + cell(v[1].value)
		}
		raw, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return printable(string(raw))
	case []object, []string:
		raw, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return printable(string(raw))
	}
	return printable(fmt.Sprint(v))
}

// printable keeps what a coordinator holds from steering the terminal.
func printable(s string) string { return text.Inert(s) }

// shorten cuts s to n characters.
func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// payloadMembers gives a byte string as JSON where it is that, else as base64.
func payloadMembers(name string, b []byte) member {
	if len(b) > 0 && json.Valid(b) && utf8.Valid(b) {
		return member{name, json.RawMessage(b)}
	}
	return member{name + "_base64", base64.StdEncoding.EncodeToString(b)}
}

// recordObject is a record with its payload decoded. detail is what its row in a table shows beside id, revision and state.
func recordObject(r frames.SnapshotRecord) (o object, state, detail string, err error) {
	o = object{{"kind", r.Kind.String()}, {"id", r.ID.String()}, {"revision", r.Revision}, {"schema", r.Schema}}
	p, err := r.DecodePayload()
	if err != nil {
		return nil, "", "", fmt.Errorf("%v: %w", r.Ref(), err)
	}
	fields, state, detail, err := payloadObject(p)
	if err != nil {
		return nil, "", "", fmt.Errorf("%v: %w", r.Ref(), err)
	}
	return append(o, member{"payload", fields}), state, detail, nil
}

// payloadObject lays out a record's payload, kind by kind, in the protocol's field names.
func payloadObject(p codec.Message) (o object, state, detail string, err error) {
	switch p := p.(type) {
	case *frames.Objective:
		o = object{{"document_schema", p.DocumentSchema}, payloadMembers("document", p.Document), {"state", p.State.String()}}
		return o, p.State.String(), overview.Title(p.Document), nil
	case *frames.Run:
		o = object{{"objective_id", p.ObjectiveID.String()}, {"attempt", p.Attempt}, {"state", p.State.String()}}
		if p.Outcome != nil {
			o = append(o, member{"outcome", outcome(p.Outcome)})
		}
		return o, p.State.String(), fmt.Sprintf("attempt %d of %s", p.Attempt, p.ObjectiveID), nil
	case *frames.WorkSession:
		o = object{{"run_id", p.RunID.String()}, {"state", p.State.String()}}
		if p.ActiveBinding != (frames.BindingID{}) {
			o = append(o, member{"active_binding", p.ActiveBinding.String()})
		}
		return o, p.State.String(), "run " + p.RunID.String(), nil
	case *frames.Binding:
		o = object{{"binding", bindingRef(p.Binding)}, {"state", p.State.String()}}
		if p.Reason != nil {
			o = append(o, member{"end_reason", p.Reason.String()})
		}
		return o, p.State.String(), "session " + p.Binding.WorkSessionID.String(), nil
	case *frames.Artifact:
		o = object{{"work_session_id", p.WorkSessionID.String()}, {"latest_revision", p.LatestRevision}}
		return o, "", "session " + p.WorkSessionID.String(), nil
	case *frames.ArtifactManifest:
		o = object{{"artifact_id", p.ArtifactID.String()}, {"revision", p.Revision}, {"schema", p.Schema}, payloadMembers("manifest", p.Manifest)}
		return o, "", fmt.Sprintf("%d bytes", len(p.Manifest)), nil
	case *frames.Signal:
		o = object{{"work_session_id", p.WorkSessionID.String()}, {"kind", runs.SignalName(p.Kind)}, {"state", p.State.String()}, {"message", p.Message}}
		return o, p.State.String(), runs.SignalName(p.Kind) + " " + p.Message, nil
	case *frames.Operation:
		o = object{{"principal_key_id", p.Principal.String()}, {"result", resultObject(p.Result)}}
		return o, p.Result.State.String(), p.Principal.String(), nil
	case *frames.Evidence:
		o = object{{"work_session_id", p.WorkSessionID.String()}, {"artifact_id", p.ArtifactID.String()}, {"seal_sha256", hex.EncodeToString(p.Seal[:])}}
		return o, "", "artifact " + p.ArtifactID.String(), nil
	case *frames.Admin:
		return adminObject(p)
	}
	return nil, "", "", fmt.Errorf("no layout for %T", p)
}

func bindingRef(b frames.TerminalBindingRef) object {
	resource := object{{"id", b.Resource.ID}}
	if b.Resource.Host != "" {
		resource = append(resource, member{"host", b.Resource.Host})
	}
	return object{
		{"binding_id", b.BindingID.String()}, {"work_session_id", b.WorkSessionID.String()},
		{"owner_authority_fingerprint", b.Owner.String()}, {"owner_incarnation", b.OwnerIncarnation.String()},
		{"resource_id", resource},
	}
}

// outcome is a run's outcome: the payload of its CLOSED fact (protocol.md §11 [D-22]).
func outcome(b []byte) any {
	switch {
	case len(b) == 1 && b[0] == 0:
		return object{{"exit_status", nil}}
	case len(b) == 5 && b[0] == 1:
		return object{{"exit_status", int32(binary.BigEndian.Uint32(b[1:]))}}
	}
	return hex.EncodeToString(b)
}

// adminObject lays out the three kinds of ADMIN records [D-14].
func adminObject(a *frames.Admin) (o object, state, detail string, err error) {
	p, err := a.DecodePayload()
	if err != nil {
		return nil, "", "", err
	}
	switch p := p.(type) {
	case *frames.Activation:
		o = object{{"admin_kind", "ACTIVATION"}, {"epoch", p.Epoch}, {"activation", p.Activation}, {"incarnation", p.Incarnation.String()},
			{"witness_id", p.WitnessID.String()}, {"witness_key_id", hex.EncodeToString(p.WitnessKeyID[:])}, {"activated_at", p.ActivatedAt}}
		return o, "ACTIVATION", fmt.Sprintf("epoch %d activation %d at %s", p.Epoch, p.Activation, when(p.ActivatedAt)), nil
	case *frames.Retention:
		o = object{{"admin_kind", "RETENTION"}, {"operation_result_secs", p.OperationResultSecs}, {"event_bytes", p.EventBytes}, {"artifact_bytes", p.ArtifactBytes}}
		return o, "RETENTION", fmt.Sprintf("results %v, events %d bytes, artifacts %d bytes", time.Duration(p.OperationResultSecs)*time.Second, p.EventBytes, p.ArtifactBytes), nil
	case *frames.Credential:
		o = object{{"admin_kind", "CREDENTIAL"}, {"key_id", p.KeyID.String()}, {"scope_ceiling", scopeNames(p.ScopeCeiling)}, {"expires_at", p.ExpiresAt}}
		detail = p.KeyID.String()[:len("sha256:")+12] + "… until " + when(p.ExpiresAt)
		if p.RevokedAt != nil {
			o = append(o, member{"revoked_at", *p.RevokedAt})
			detail += ", revoked " + when(*p.RevokedAt)
		}
		return o, "CREDENTIAL", detail, nil
	}
	return nil, "", "", fmt.Errorf("no layout for %T", p)
}

// when is a wire time for people.
func when(unix uint64) string {
	const last = 253402300799 // the end of year 9999, beyond which the format has no room
	if unix > last {
		return "the end of time"
	}
	return time.Unix(int64(unix), 0).UTC().Format(time.RFC3339)
}

// scopeNames spells a scope as the registry does.
func scopeNames(s frames.Scope) []string {
	text := handshake.EndpointScopes().Format(uint64(s))
	if text == "" {
		return []string{}
	}
	return strings.Split(text, ",")
}

// resultObject lays out an OperationResult by its state (protocol.md §8).
func resultObject(r frames.OperationResult) object {
	o := object{{"state", r.State.String()}}
	switch r.State {
	case frames.OperationPending:
		o = append(o, member{"admitted_epoch", r.Epoch}, member{"admitted_event_sequence", r.Sequence})
	case frames.OperationSucceeded:
		o = append(o, member{"completed_event_sequence", r.Sequence})
		o = append(o, successMembers(r)...)
	case frames.OperationRejected:
		o = append(o, member{"completed_event_sequence", r.Sequence}, member{"error_code", r.Code.String()}, member{"message", r.Message})
	case frames.OperationIndeterminate:
		o = append(o, member{"reason", r.Reason.String()})
		if r.Attempt != (frames.EffectAttemptID{}) {
			o = append(o, member{"effect_attempt_id", r.Attempt.String()})
		}
	case frames.OperationTombstoned:
		o = append(o, member{"command_digest", hex.EncodeToString(r.Digest[:])}, member{"final_state", r.Final.String()})
	}
	return o
}

func successMembers(r frames.OperationResult) object {
	switch r.Kind {
	case frames.ResultObjectRef:
		var ref frames.ObjectRef
		if codec.DecodeImage(&ref, r.Payload) == nil {
			return object{{"result_kind", "OBJECT_REF"}, {"object", object{{"kind", ref.Kind.String()}, {"id", ref.ID.String()}}}}
		}
	case frames.ResultStarted:
		var s frames.Started
		if codec.DecodeImage(&s, r.Payload) == nil {
			o := object{{"result_kind", "STARTED"}, {"run_id", s.Run.String()}, {"work_session_id", s.Session.String()}}
			if s.Binding != (frames.BindingID{}) {
				o = append(o, member{"binding_id", s.Binding.String()})
			}
			return o
		}
	case frames.ResultDocument:
		var d frames.Document
		if codec.DecodeImage(&d, r.Payload) == nil {
			return object{{"result_kind", "DOCUMENT"}, {"schema", d.Schema}, payloadMembers("payload", d.Payload)}
		}
	case frames.ResultNone:
		return object{{"result_kind", "NONE"}}
	}
	return object{{"result_kind", uint16(r.Kind)}, {"payload_base64", base64.StdEncoding.EncodeToString(r.Payload)}}
}

// showResult prints what a command came to. show is what belongs in front of it: the ids
// that the command named. A result other than SUCCEEDED or PENDING is an error.
func (a *app) showResult(op frames.OperationID, r frames.OperationResult, show object) error {
	o := append(object{{"operation_id", op.String()}}, show...)
	o = append(o, resultObject(r)...)
	if err := a.print(o); err != nil {
		return err
	}
	switch r.State {
	case frames.OperationRejected, frames.OperationIndeterminate, frames.OperationUnknown:
		return &resultError{op, r}
	case frames.OperationPending:
		fmt.Fprintf(a.stderr, "coordctl: not finished yet; its end: %s\n", a.line("op get "+op.String()))
	}
	return nil
}

// print prints one object in the format that was asked for.
func (a *app) print(o object) error {
	if a.structured() {
		return a.emit(o)
	}
	return writeMembers(a.stdout, a.paint(a.stdout), o)
}
