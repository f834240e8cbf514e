package fuzz_test

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/vectors"
)

// FuzzEnvelope reads a header, which takes 5 bytes and no more whatever it says.
func FuzzEnvelope(f *testing.F) {
	vectors.Seed(f, vectors.SeedEnvelopes)
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := bytes.NewReader(stream)
		var header [codec.HeaderSize]byte
		length, typ, err := codec.ReadHeader(r, &header)
		if taken := len(stream) - r.Len(); taken > codec.HeaderSize {
			t.Fatalf("took %d bytes", taken)
		}
		if len(stream) < 4 {
			if err == nil {
				t.Fatal("a header of less than 4 bytes")
			}
			return
		}
		said := binary.BigEndian.Uint32(stream)
		switch inRange := said > 0 && said <= codec.MaxFrame; {
		case inRange == (frames.CodeOf(err) == frames.CodeFrameTooLarge):
			t.Fatalf("length %d: %v", said, err)
		case err != nil:
			return
		case length != said || typ != stream[4]:
			t.Fatalf("read length %d type %#x of %x", length, typ, stream[:5])
		}
		again, err := codec.AppendFrame(nil, typ, raw(stream[5:]))
		if err == nil && r.Len() == int(length)-1 && !bytes.Equal(again, stream) {
			t.Fatalf("frame %x is written as %x", stream, again)
		}
	})
}

// raw is a message of whatever fields a body has; if the body is not canonical it fails.
type raw []byte

func (m raw) Layout(b *codec.Body) {
	fields, err := codec.ParseFields(m)
	if err != nil || !bytes.Equal(codec.AppendFields(nil, fields), m) {
		b.Fail(0, codec.ErrInvalid)
		return
	}
	b.Unknown(&fields)
}

// FuzzTLV splits any body. The three ways to read one agree.
func FuzzTLV(f *testing.F) {
	vectors.Seed(f, vectors.SeedTLV)
	f.Fuzz(func(t *testing.T, body []byte) {
		fields, err := codec.ParseFields(body)
		m := new(anyFields)
		if err2 := codec.Decode(m, body); (err == nil) != (err2 == nil) {
			t.Fatalf("ParseFields says %v, Decode %v", err, err2)
		}
		scanned := codec.ScanFields(body, func(uint32) bool { return true })
		if err != nil {
			malformed(t, err)
			return
		}
		if !slices.IsSortedFunc(fields, byID) {
			t.Fatalf("fields of %x are not sorted", body)
		}
		slices.SortFunc(scanned, byID)
		if !slices.EqualFunc(fields, scanned, sameField) || !slices.EqualFunc(fields, m.fields, sameField) {
			t.Fatalf("%x: ParseFields %v, ScanFields %v, Decode %v", body, fields, scanned, m.fields)
		}
		checkMessage(t, m, body, func() codec.Message { return new(anyFields) })
	})
}

// anyFields is a message whose layout names no field.
type anyFields struct{ fields []codec.Field }

func (a *anyFields) Layout(b *codec.Body) { b.Unknown(&a.fields) }

func byID(x, y codec.Field) int       { return int(int64(x.ID) - int64(y.ID)) }
func sameField(x, y codec.Field) bool { return x.ID == y.ID && bytes.Equal(x.Value, y.Value) }

// FuzzFrame decodes every frame of the endpoint; the first byte is its type.
func FuzzFrame(f *testing.F) {
	vectors.Seed(f, vectors.SeedFrames)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		typ, body := frames.Type(data[0]), data[1:]
		m, err := frames.Decode(typ, body)
		if !typ.Known() {
			if frames.CodeOf(err) != frames.CodeProtocolError {
				t.Fatalf("unknown type %v: %v", typ, err)
			}
			return
		}
		if err != nil {
			malformed(t, err)
			return
		}
		if m.Type() != typ {
			t.Fatalf("type %v decodes to a %v", typ, m.Type())
		}
		checkMessage(t, m, body, freshOf(m))
		whole, err := frames.Append(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		if event, ok := m.(*frames.CoordEvent); ok && frames.EventBytes(len(event.Payload)) != len(whole) {
			t.Fatalf("event of %d bytes is charged as %d", len(whole), frames.EventBytes(len(event.Payload)))
		}
		if command, ok := m.(*frames.CoordCommand); ok {
			checkDigest(t, command)
		}
	})
}

// checkDigest: what is outside the operation digest does not move it, and the order of
// the payload's fields neither (protocol.md §8).
func checkDigest(t *testing.T, m *frames.CoordCommand) {
	t.Helper()
	canonical, err := codec.Canonical(m.Payload)
	digest, err2 := frames.OperationDigest(m)
	if (err == nil) != (err2 == nil) {
		t.Fatalf("payload %x: canonical %v, digest %v", m.Payload, err, err2)
	}
	if err != nil {
		return
	}
	other := *m
	other.RequestID, other.Guard, other.OperationID = 77, frames.AuthorityGuard{}, frames.OperationID{1}
	other.Payload = canonical
	other.Preconditions = slices.Clone(m.Preconditions)
	slices.Reverse(other.Preconditions)
	if same, err := frames.OperationDigest(&other); err != nil || same != digest {
		t.Fatalf("digest moved from %x to %x (%v)", digest, same, err)
	}
	other.Kind ^= 1
	if moved, err := frames.OperationDigest(&other); err != nil || moved == digest {
		t.Fatalf("digest does not know the kind (%v)", err)
	}
}

// fuzzImage fuzzes positional values; the first byte picks one of several.
func fuzzImage(f *testing.F, values []func() codec.Value, check func(*testing.T, codec.Value)) {
	f.Helper()
	f.Fuzz(func(t *testing.T, data []byte) {
		pick := 0
		if len(values) > 1 {
			if len(data) == 0 || int(data[0]) >= len(values) {
				return
			}
			pick, data = int(data[0]), data[1:]
		}
		v := values[pick]()
		if err := codec.DecodeImage(v, data); err != nil {
			malformed(t, err)
			return
		}
		checkImage(t, v, data)
		if check != nil {
			check(t, v)
		}
	})
}

// FuzzRecord decodes a record, its payload and what an ADMIN record holds inside.
func FuzzRecord(f *testing.F) {
	vectors.Seed(f, vectors.SeedRecords)
	fuzzImage(f, []func() codec.Value{func() codec.Value { return new(frames.SnapshotRecord) }}, func(t *testing.T, v codec.Value) {
		r := v.(*frames.SnapshotRecord)
		if n := r.Size(); n != imageSize(t, r) {
			t.Fatalf("record says it is %d bytes long", n)
		}
		m, err := r.DecodePayload()
		if err != nil {
			if r.Schema == frames.RecordSchema {
				malformed(t, err)
			}
			return
		}
		checkMessage(t, m, r.Payload, freshOf(m))
		if admin, ok := m.(*frames.Admin); ok {
			if inner, err := admin.DecodePayload(); err == nil {
				checkMessage(t, inner, admin.Payload, freshOf(inner))
			}
		}
	})
}

func freshOf(m codec.Message) func() codec.Message {
	return func() codec.Message { return reflect.New(reflect.TypeOf(m).Elem()).Interface().(codec.Message) }
}

func imageSize(t *testing.T, v codec.Value) int {
	t.Helper()
	raw, err := codec.EncodeImage(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	return len(raw)
}

// FuzzFact decodes a fact and its payload.
func FuzzFact(f *testing.F) {
	vectors.Seed(f, vectors.SeedFacts)
	fuzzImage(f, []func() codec.Value{func() codec.Value { return new(frames.TerminalSourceFact) }}, func(t *testing.T, v codec.Value) {
		fact := v.(*frames.TerminalSourceFact)
		payload, err := fact.DecodePayload()
		if err != nil {
			t.Fatalf("fact decodes, its payload does not: %v", err)
		}
		checkImage(t, payload, fact.Payload)
	})
}

// FuzzImage decodes the six states of an operation, binding refs, source gaps and replayed
// events, as the first byte says.
func FuzzImage(f *testing.F) {
	seedTagged(f, vectors.SeedOperationResults, vectors.SeedBindingRefs, vectors.SeedSourceGaps, vectors.SeedReplayEvents)
	fuzzImage(f, []func() codec.Value{
		func() codec.Value { return new(frames.OperationResult) },
		func() codec.Value { return new(frames.TerminalBindingRef) },
		func() codec.Value { return new(frames.SourceGap) },
		func() codec.Value { return new(frames.ReplayEvent) },
	}, func(t *testing.T, v codec.Value) {
		if e, ok := v.(*frames.ReplayEvent); ok && e.Size() != imageSize(t, e) {
			t.Fatalf("event says it is %d bytes long", e.Size())
		}
	})
}

// seedTagged adds the seeds of the n-th family behind a byte n.
func seedTagged(f *testing.F, families ...string) {
	f.Helper()
	for n, family := range families {
		for _, b := range vectors.Seeds(f, family) {
			f.Add(append([]byte{byte(n)}, b...))
		}
	}
}

// FuzzEffect decodes targets and outbox rows, as the first byte says. A row's target and
// payload must fit its kind.
func FuzzEffect(f *testing.F) {
	seedTagged(f, vectors.SeedEffectTargets, vectors.SeedEffectAttempts)
	fuzzImage(f, []func() codec.Value{
		func() codec.Value { return new(frames.EffectTarget) },
		func() codec.Value { return new(frames.EffectAttempt) },
	}, func(t *testing.T, v codec.Value) {
		if a, ok := v.(*frames.EffectAttempt); ok {
			checkAttempt(t, a)
		}
	})
}

func checkAttempt(t *testing.T, a *frames.EffectAttempt) {
	t.Helper()
	if (a.Kind == frames.EffectSpawn) != (a.Target.Tag == frames.TargetPendingSpawn) {
		t.Fatalf("kind %d at target tag %d", a.Kind, a.Target.Tag)
	}
	payload := map[frames.EffectKind]codec.Value{
		frames.EffectSpawn: new(frames.SpawnPayload), frames.EffectKill: new(frames.KillPayload),
		frames.EffectProcessSignal: new(frames.SignalPayload),
	}[a.Kind]
	if err := codec.DecodeImage(payload, a.Payload); err != nil {
		t.Fatalf("attempt decodes, its payload does not: %v", err)
	}
	checkImage(t, payload, a.Payload)
	if _, err := frames.EffectDigest(a.Kind, &a.Target, a.Payload); err != nil {
		t.Fatal(err)
	}
}

// FuzzCertificate decodes certificates. What is signed is their first 145 bytes.
func FuzzCertificate(f *testing.F) {
	vectors.Seed(f, vectors.SeedCertificates)
	fuzzImage(f, []func() codec.Value{func() codec.Value { return new(frames.Certificate) }}, func(t *testing.T, v codec.Value) {
		c := v.(*frames.Certificate)
		image, err := codec.EncodeImage(nil, c)
		if err != nil || len(image) != frames.CertificateSize {
			t.Fatalf("image of %d bytes, %v", len(image), err)
		}
		preimage, err := c.Preimage()
		if err != nil || !bytes.HasSuffix(preimage, image[:145]) || !bytes.HasPrefix(preimage, []byte("phux-coordinator-activation/v1\x00")) {
			t.Fatalf("preimage %x of %x (%v)", preimage, image, err)
		}
		pins := handshake.Pins{WitnessID: c.WitnessID, CoordinatorID: c.CoordinatorID}
		if handshake.VerifyCertificate(c, pins, c.IssuedAt) == nil {
			t.Fatal("verified under a key of zeros")
		}
	})
}

// FuzzRegistryLine parses lines of the two kinds of registry.
func FuzzRegistryLine(f *testing.F) {
	const rest = " scope=work_read,admin expires=2030-01-02T03:04:05Z label=ci.node-1"
	for _, key := range vectors.Seeds(f, vectors.SeedPublicKeys) {
		if len(key) == 32 {
			line := handshake.FormatPublicKey([32]byte(key)) + rest
			f.Add(line, false)
			f.Add(line+" revoked=2029-01-02T03:04:05+02:00 # gone", false)
			f.Add(line+" coordinator=000102030405060708090a0b0c0d0e0f", true)
		}
	}
	f.Add("# nothing", false)
	f.Fuzz(func(t *testing.T, line string, link bool) {
		rules := handshake.Rules{Scopes: handshake.EndpointScopes(), NeedCoordinator: link}
		r, err := handshake.ParseRecord(line, rules)
		if err != nil {
			return
		}
		canonical := r.Line(rules)
		again, err := handshake.ParseRecord(canonical, rules)
		if err != nil || again != r {
			t.Fatalf("%q is written as %q, which parses to %+v, %v", line, canonical, again, err)
		}
		if twice := again.Line(rules); twice != canonical {
			t.Fatalf("%q is written as %q and then as %q", line, canonical, twice)
		}
		if r.Scope == 0 || r.Scope&^uint64(frames.AllScopes) != 0 || r.KeyID != handshake.KeyIDOf(r.PublicKey) ||
			handshake.CheckPublicKey(r.PublicKey[:]) != nil || (r.Coordinator != frames.CoordinatorID{}) != link {
			t.Fatalf("%q parses to %+v", line, r)
		}
		if strings.ContainsAny(canonical, "\r\n#") {
			t.Fatalf("%q is written as %q, which is not one line", line, canonical)
		}
	})
}

// FuzzCommand decodes command payloads behind their kind.
func FuzzCommand(f *testing.F) {
	vectors.Seed(f, vectors.SeedCommands)
	for kind := range payloads {
		f.Add(binary.BigEndian.AppendUint16(nil, uint16(kind)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 2 {
			return
		}
		fresh, ok := payloads[frames.CommandKind(binary.BigEndian.Uint16(data))]
		if !ok {
			return
		}
		m, body := fresh(), data[2:]
		if err := codec.Decode(m, body); err != nil {
			malformed(t, err)
			return
		}
		checkMessage(t, m, body, fresh)
	})
}

var payloads = map[frames.CommandKind]func() codec.Message{
	frames.CommandCreateObjective:          func() codec.Message { return new(frames.CreateObjective) },
	frames.CommandUpdateObjective:          func() codec.Message { return new(frames.UpdateObjective) },
	frames.CommandStartRun:                 func() codec.Message { return new(frames.StartRun) },
	frames.CommandCancelRun:                func() codec.Message { return new(frames.RunCommand) },
	frames.CommandPauseRun:                 func() codec.Message { return new(frames.RunCommand) },
	frames.CommandResumeRun:                func() codec.Message { return new(frames.RunCommand) },
	frames.CommandAckSignal:                func() codec.Message { return new(frames.SignalCommand) },
	frames.CommandSuppressSignal:           func() codec.Message { return new(frames.SignalCommand) },
	frames.CommandRegisterArtifactManifest: func() codec.Message { return new(frames.RegisterArtifactManifest) },
	frames.CommandEndBinding:               func() codec.Message { return new(frames.EndBinding) },
	frames.CommandChangeRetention:          func() codec.Message { return new(frames.ChangeRetention) },
	frames.CommandArchiveObjective:         func() codec.Message { return new(frames.ArchiveObjective) },
}
