package vectors_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
)

// A row is the values of one frame by protocol name, in the form that compare expects:
// numbers as decimal text, bytes as hex, text and bools as they are, nil for what is
// absent, a row or a list for what is nested. It is written out by hand, apart from the
// layouts, so that a field under a wrong number shows.
type row = map[string]any

func num[T ~uint8 | ~uint16 | ~uint32 | ~uint64](v T) string {
	return strconv.FormatUint(uint64(v), 10)
}

func id[T ~[16]byte](v T) string {
	raw := [16]byte(v)
	return hex.EncodeToString(raw[:])
}

func hash[T ~[32]byte](v T) string {
	raw := [32]byte(v)
	return hex.EncodeToString(raw[:])
}

// opt is nil for the zero value, which stands for absent.
func opt[T comparable](v T, form func(T) string) any {
	if v == *new(T) {
		return nil
	}
	return form(v)
}

func optBytes(b []byte) any {
	if b == nil {
		return nil
	}
	return hex.EncodeToString(b)
}

func image(t *testing.T, v codec.Value) string {
	t.Helper()
	raw, err := codec.EncodeImage(nil, v)
	if err != nil {
		t.Fatalf("encode the value that was just decoded: %v", err)
	}
	return hex.EncodeToString(raw)
}

func guard(g frames.AuthorityGuard) row {
	return row{
		"coordinator_id": id(g.CoordinatorID), "authority_epoch": num(g.Epoch),
		"activation_sequence": num(g.Activation), "fencing_token_sha256": hash(g.TokenSHA256),
	}
}

func object(r frames.ObjectRef) row { return row{"kind": num(r.Kind), "id": id(r.ID)} }

func valuesOf(t *testing.T, f frames.Frame) row {
	t.Helper()
	switch m := f.(type) {
	case *frames.CoordHello:
		return helloValues(m)
	case *frames.CoordHelloOK:
		return helloOKValues(t, m)
	case *frames.WorkloadChallenge:
		return row{
			"profile": m.Profile, "service": m.Service, "negotiated_major": num(m.Major), "negotiated_minor": num(m.Minor),
			"client_nonce": hash(m.ClientNonce), "server_nonce": hash(m.ServerNonce), "server_incarnation": id(m.Incarnation),
			"channel_binding_kind": num(m.BindingKind), "channel_binding": hash(m.Binding),
			"authority_public_key": hash(m.AuthorityKey), "authority_proof": hex.EncodeToString(m.Proof[:]),
		}
	case *frames.WorkloadResponse:
		return row{
			"key_id": hash(m.KeyID), "requested_scope_bytes": hex.EncodeToString(m.ScopeBytes),
			"requested_expiry": num(m.RequestedExpiry), "workload_proof": hex.EncodeToString(m.Proof[:]),
		}
	case *frames.Ack:
		return row{"request_id": num(m.RequestID)}
	case *frames.Ping:
		return row{"nonce": num(m.Nonce)}
	case *frames.Pong:
		return row{"nonce": num(m.Nonce)}
	case *frames.AuthorityRenewed:
		return row{"activation_certificate": image(t, &m.Certificate)}
	case *frames.CoordError:
		return row{"request_id": opt(m.RequestID, num), "code": num(m.Code), "message": m.Message}
	case *frames.CoordCommand:
		return commandValues(m)
	case *frames.CoordCommandResult:
		return row{"request_id": num(m.RequestID), "operation": image(t, &m.Operation)}
	case *frames.GetOperationResult:
		return row{"request_id": num(m.RequestID), "authority_guard": guard(m.Guard), "operation_id": id(m.OperationID)}
	case *frames.OperationResultFrame:
		return row{"request_id": num(m.RequestID), "operation": image(t, &m.Operation)}
	}
	if r := snapshotValues(t, f); r != nil {
		return r
	}
	if r := streamValues(t, f); r != nil {
		return r
	}
	t.Fatalf("no values are written down for %v", f.Type())
	return nil
}

func helloValues(m *frames.CoordHello) row {
	r := row{
		"protocol_major": num(m.Version.Major), "protocol_minor": num(m.Version.Minor), "protocol_patch": num(m.Version.Patch),
		"client_name": m.Name, "offered_capabilities": num(m.Offered), "required_capabilities": num(m.Required),
		"workload_offer": nil,
	}
	addLimits(r, m.Limits)
	if m.HasOffer {
		r["workload_offer"] = row{"profile": m.Offer.Profile, "client_nonce": hash(m.Offer.ClientNonce)}
	}
	return r
}

func helloOKValues(t *testing.T, m *frames.CoordHelloOK) row {
	r := row{
		"protocol_major": num(m.Version.Major), "protocol_minor": num(m.Version.Minor), "protocol_patch": num(m.Version.Patch),
		"negotiated_capabilities": num(m.Capabilities), "coordinator_id": id(m.CoordinatorID),
		"authority_epoch": num(m.Epoch), "incarnation_id": id(m.IncarnationID),
		"workload_grant": row{
			"key_id": hash(m.Grant.KeyID), "authority_fingerprint": hash(m.Grant.Fingerprint),
			"expires_at": num(m.Grant.ExpiresAt), "effective_scope_bytes": fmt.Sprintf("%016x", uint64(m.Grant.Scope)),
		},
		"operation_result_retention_secs": num(m.RetentionSecs), "activation_certificate": image(t, &m.Certificate),
	}
	addLimits(r, m.Limits)
	return r
}

func addLimits(r row, l frames.Limits) {
	r["max_frame_bytes"] = num(l.FrameBytes)
	r["max_page_bytes"] = num(l.PageBytes)
	r["max_page_records"] = num(l.PageRecords)
	r["max_typed_payload_bytes"] = num(l.TypedPayload)
	r["max_event_credit_count"] = num(l.CreditCount)
	r["max_event_credit_bytes"] = num(l.CreditBytes)
}

func commandValues(m *frames.CoordCommand) row {
	conditions, extensions := []any{}, []any{}
	for _, p := range m.Preconditions {
		conditions = append(conditions, row{"kind": num(p.Object.Kind), "id": id(p.Object.ID), "revision": num(p.Revision)})
	}
	for _, f := range m.Extensions {
		extensions = append(extensions, []any{num(f.ID), hex.EncodeToString(f.Value)})
	}
	return row{
		"request_id": num(m.RequestID), "authority_guard": guard(m.Guard), "operation_id": id(m.OperationID),
		"command_kind": num(m.Kind), "payload": hex.EncodeToString(m.Payload), "preconditions": conditions,
		"extensions": extensions,
	}
}

func snapshotValues(t *testing.T, f frames.Frame) row {
	t.Helper()
	switch m := f.(type) {
	case *frames.OpenSnapshot:
		return row{
			"request_id": num(m.RequestID), "authority_guard": guard(m.Guard), "selector": "0",
			"reserve_subscription": m.Reserve, "replace_paused_subscription": opt(m.Replace, id),
		}
	case *frames.SnapshotBegin:
		var bases any
		if m.Bases != nil {
			list := []any{}
			for _, b := range m.Bases {
				list = append(list, row{"activation": num(b.Activation), "base": num(b.Base)})
			}
			bases = list
		}
		return row{
			"request_id": num(m.RequestID), "snapshot_id": id(m.SnapshotID), "authority_guard": guard(m.Guard),
			"base_event_sequence": num(m.Base), "first_cursor": optBytes(m.FirstCursor),
			"subscription_id": opt(m.SubscriptionID, id), "lease_expires_at": num(m.LeaseExpiresAt), "activation_bases": bases,
		}
	case *frames.SnapshotNext:
		return row{"request_id": num(m.RequestID), "snapshot_id": id(m.SnapshotID), "cursor": hex.EncodeToString(m.Cursor)}
	case *frames.SnapshotPage:
		records := []any{}
		for k := range m.Records {
			records = append(records, image(t, &m.Records[k]))
		}
		return row{
			"request_id": num(m.RequestID), "snapshot_id": id(m.SnapshotID), "cursor": hex.EncodeToString(m.Cursor),
			"page_index": num(m.Index), "records": records, "next_cursor": optBytes(m.NextCursor),
		}
	case *frames.SnapshotEnd:
		return row{
			"request_id": num(m.RequestID), "snapshot_id": id(m.SnapshotID), "page_count": num(m.PageCount),
			"record_count": num(m.RecordCount), "canonical_sha256": hash(m.Digest),
		}
	case *frames.SnapshotApplied:
		return row{
			"request_id": num(m.RequestID), "snapshot_id": id(m.SnapshotID), "subscription_id": opt(m.SubscriptionID, id),
			"initial_credit_count": num(m.CreditCount), "initial_credit_bytes": num(m.CreditBytes),
		}
	}
	return nil
}

func streamValues(t *testing.T, f frames.Frame) row {
	t.Helper()
	switch m := f.(type) {
	case *frames.Subscribe:
		return row{
			"request_id": num(m.RequestID), "authority_guard": guard(m.Guard), "after_event_sequence": num(m.After),
			"initial_credit_count": num(m.CreditCount), "initial_credit_bytes": num(m.CreditBytes),
		}
	case *frames.Subscribed:
		return row{
			"request_id": num(m.RequestID), "subscription_id": id(m.SubscriptionID), "next_delivery_sequence": num(m.NextDelivery),
		}
	case *frames.Credit:
		return row{"subscription_id": id(m.SubscriptionID), "add_count": num(m.AddCount), "add_bytes": num(m.AddBytes)}
	case *frames.CoordEvent:
		return row{
			"subscription_id": id(m.SubscriptionID), "delivery_sequence": num(m.Delivery), "event_sequence": num(m.Sequence),
			"event_id": id(m.EventID), "event_kind": num(m.Kind), "object": object(m.Object),
			"object_revision": num(m.Revision), "schema": num(m.Schema), "payload": hex.EncodeToString(m.Payload),
		}
	case *frames.Gap:
		return row{
			"subscription_id": id(m.SubscriptionID), "last_contiguous_delivery": num(m.LastDelivery),
			"last_contiguous_event": num(m.LastEvent), "observed_event": opt(m.Observed, num), "reason": num(m.Reason),
		}
	case *frames.OpenReplay:
		return row{
			"request_id": num(m.RequestID), "authority_guard": guard(m.Guard), "subscription_id": id(m.SubscriptionID),
			"after_event_sequence": num(m.After),
		}
	case *frames.ReplayBegin:
		return row{
			"request_id": num(m.RequestID), "replay_id": id(m.ReplayID), "subscription_id": id(m.SubscriptionID),
			"first_event": opt(m.FirstEvent, num), "replay_cut": num(m.Cut), "first_cursor": optBytes(m.FirstCursor),
			"lease_expires_at": num(m.LeaseExpiresAt),
		}
	case *frames.ReplayNext:
		return row{"request_id": num(m.RequestID), "replay_id": id(m.ReplayID), "cursor": hex.EncodeToString(m.Cursor)}
	case *frames.ReplayPage:
		events := []any{}
		for k := range m.Events {
			events = append(events, image(t, &m.Events[k]))
		}
		return row{
			"request_id": num(m.RequestID), "replay_id": id(m.ReplayID), "cursor": hex.EncodeToString(m.Cursor),
			"page_index": num(m.Index), "events": events, "next_cursor": optBytes(m.NextCursor),
		}
	case *frames.ReplayEnd:
		return row{
			"request_id": num(m.RequestID), "replay_id": id(m.ReplayID), "page_count": num(m.PageCount),
			"event_count": num(m.EventCount), "canonical_sha256": hash(m.Digest),
		}
	case *frames.ReplayApplied:
		return row{
			"request_id": num(m.RequestID), "replay_id": id(m.ReplayID), "subscription_id": id(m.SubscriptionID),
			"initial_credit_count": num(m.CreditCount), "initial_credit_bytes": num(m.CreditBytes),
		}
	}
	return nil
}

// compare says where got does not have what want gives, or "" when it has all of it.
func compare(path string, want, got any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(row)
		if !ok {
			return fmt.Sprintf("%s is %v, want an object", path, got)
		}
		for name, v := range w {
			have, ok := g[name]
			if !ok {
				return fmt.Sprintf("%s.%s is not a value that this frame has", path, name)
			}
			if at := compare(path+"."+name, v, have); at != "" {
				return at
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%s is %v, want %d elements", path, got, len(w))
		}
		for k := range w {
			if at := compare(fmt.Sprintf("%s[%d]", path, k), w[k], g[k]); at != "" {
				return at
			}
		}
		return ""
	case json.Number:
		want = w.String()
	}
	if want != got {
		return fmt.Sprintf("%s is %v, want %v", path, got, want)
	}
	return ""
}
