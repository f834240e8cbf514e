package vectors_test

import (
	"bytes"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/work"
	"coordinator/vectors"
)

// States and directions that refused cases name.
const (
	stateHandshake  = "handshake"  // before COORD_HELLO (server), or before the challenge (client)
	stateChallenged = "challenged" // challenge sent, or answered
	stateActive     = "active"     // after COORD_HELLO_OK
	fromClient      = "c2s"
	fromServer      = "s2c"
)

// expects lists what a receiver takes before COORD_HELLO_OK. Afterwards it takes every
// type of its direction that is not one of the handshake.
var expects = map[string]map[string][]frames.Type{
	fromClient: {
		stateHandshake:  {frames.TypeCoordHello, frames.TypePing, frames.TypePong, frames.TypeCoordError},
		stateChallenged: {frames.TypeWorkloadResponse, frames.TypeCoordError},
	},
	fromServer: {
		stateHandshake:  {frames.TypeWorkloadChallenge, frames.TypePong, frames.TypeCoordError},
		stateChallenged: {frames.TypeCoordHelloOK, frames.TypeCoordError},
	},
}

var handshakeTypes = []frames.Type{
	frames.TypeCoordHello, frames.TypeCoordHelloOK, frames.TypeWorkloadChallenge, frames.TypeWorkloadResponse,
}

// A receiver is one end of a connection in one state. It is put together from the rules
// that the server and the client library use, in the order of protocol.md §2 and §5.5.
type receiver struct {
	t         *testing.T
	set       *vectors.Set
	direction string
	state     string
	guard     frames.AuthorityGuard
}

func newReceiver(t *testing.T, s *vectors.Set, direction, state string) *receiver {
	t.Helper()
	if direction != fromClient && direction != fromServer {
		t.Fatalf("direction %q is unknown", direction)
	}
	if expects[direction][state] == nil && state != stateActive {
		t.Fatalf("state %q is unknown", state)
	}
	// The certificate in force is the one that the set's COORD_HELLO_OK carries.
	_, body := split(t, frameOf(t, s, frames.TypeCoordHelloOK))
	var ok frames.CoordHelloOK
	if err := codec.Decode(&ok, body); err != nil {
		t.Fatal(err)
	}
	return &receiver{t: t, set: s, direction: direction, state: state, guard: ok.Certificate.Guard()}
}

// limits are the selected ones, or nil before COORD_HELLO_OK.
func (r *receiver) limits() *frames.Limits {
	if r.state != stateActive {
		return nil
	}
	l := frames.ReferenceLimits()
	return &l
}

// allowed checks direction and state.
func (r *receiver) allowed(typ frames.Type) bool {
	if r.direction == fromClient && !typ.FromClient() || r.direction == fromServer && !typ.FromServer() {
		return false
	}
	list := expects[r.direction][r.state]
	if r.state == stateActive {
		list = handshakeTypes
	}
	for _, other := range list {
		if typ == other {
			return r.state != stateActive
		}
	}
	return r.state == stateActive
}

// receive takes one frame, or the beginning of one that is refused before its end.
func (r *receiver) receive(frame []byte) error {
	in := bytes.NewReader(frame)
	var header [codec.HeaderSize]byte
	length, raw, err := codec.ReadHeader(in, &header)
	if err != nil {
		return err
	}
	typ := frames.Type(raw)
	if !typ.Known() || !r.allowed(typ) {
		return frames.Refuse(frames.CodeProtocolError, "type %v is not allowed here", typ)
	}
	if length > frames.FrameCap(typ, r.limits()) {
		return codec.ErrFrameTooLarge
	}
	if in.Len() != int(length)-1 {
		r.t.Fatalf("%d bytes follow the header, its length says %d", in.Len(), length-1)
	}
	return r.accept(typ, frame[codec.HeaderSize:])
}

// accept judges the body.
func (r *receiver) accept(typ frames.Type, body []byte) error {
	if typ == frames.TypeCoordHello {
		if v, ok := frames.HelloVersion(body); ok && !v.Compatible(frames.CurrentVersion()) {
			return frames.Refuse(frames.CodeVersionIncompatible, "version %d.%d", v.Major, v.Minor)
		}
	}
	f, err := frames.Decode(typ, body)
	if err != nil {
		return err
	}
	switch m := f.(type) {
	case *frames.CoordHello:
		_, _, err := frames.Negotiate(m, frames.ReferenceLimits(), work.Capabilities)
		return err
	case *frames.WorkloadResponse:
		if err := respond(r.t, &r.set.Handshakes[0], m); err != nil {
			return frames.Refuse(frames.CodeAuthenticationFailed, "%v", err)
		}
	case *frames.CoordCommand:
		if err := r.checkGuard(m.Guard); err != nil {
			return err
		}
		viewer := work.Viewer{Scope: frames.AllScopes, Capabilities: work.Capabilities}
		_, err := work.Parse(m, viewer, r.limits().TypedPayload)
		return err
	case *frames.GetOperationResult:
		return r.checkGuard(m.Guard)
	case *frames.OpenSnapshot:
		return r.checkGuard(m.Guard)
	case *frames.Subscribe:
		return r.checkGuard(m.Guard)
	case *frames.OpenReplay:
		return r.checkGuard(m.Guard)
	}
	return nil
}

func (r *receiver) checkGuard(g frames.AuthorityGuard) error {
	if g != r.guard {
		return frames.Refuse(frames.CodeStaleAuthority, "guard is not that of the certificate")
	}
	return nil
}

func TestRefused(t *testing.T) {
	each(t, func(s *vectors.Set) (all []vectors.Refused) {
		for _, f := range s.Frames {
			all = append(all, f.Refused...)
		}
		return all
	}, func(v *vectors.Refused) string { return v.Name }, func(t *testing.T, s *vectors.Set, v *vectors.Refused) {
		err := newReceiver(t, s, v.Direction, v.State).receive(v.Frame)
		if err == nil {
			t.Fatalf("accepted, want %v", frames.Code(v.Code))
		}
		if got := frames.CodeOf(err); got != frames.Code(v.Code) {
			t.Errorf("refused with %v (%v), want %v", got, err, frames.Code(v.Code))
		}
	})
}

// The receiver of the refused cases takes what is good: every frame of testdata, in the
// state and direction that it belongs to.
func TestAccepted(t *testing.T) {
	states := map[frames.Type]string{
		frames.TypeCoordHello: stateHandshake, frames.TypeWorkloadChallenge: stateHandshake,
		frames.TypeWorkloadResponse: stateChallenged, frames.TypeCoordHelloOK: stateChallenged,
	}
	s := vectors.Load(t)[0]
	for _, v := range allFrames(s) {
		typ := frames.Type(v.Type)
		state := states[typ]
		if state == "" {
			state = stateActive
		}
		for direction, belongs := range map[string]bool{fromClient: typ.FromClient(), fromServer: typ.FromServer()} {
			t.Run(v.Name+" "+direction, func(t *testing.T) {
				err := newReceiver(t, s, direction, state).receive(v.Frame)
				switch code := frames.CodeOf(err); {
				case belongs && code == frames.CodeCapabilityRequired && typ == frames.TypeCoordCommand:
					// A kind that this server does not offer; its frame is well-formed.
				case belongs && err != nil:
					t.Errorf("in state %s: %v", state, err)
				case !belongs && (err == nil || code != frames.CodeProtocolError):
					t.Errorf("in state %s: %v, want PROTOCOL_ERROR", state, err)
				}
			})
		}
	}
}
