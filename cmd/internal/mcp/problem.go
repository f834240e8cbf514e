package mcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/frames"
	"coordinator/internal/durable"
	"coordinator/internal/quicnet"
	"coordinator/internal/text"
	"coordinator/owner"
)

// A Problem is why a call failed: what, and what to do next.
type Problem struct {
	// Code is the protocol's error code, or one of this server's: BAD_ARGUMENT, UNAVAILABLE,
	// TIMED_OUT, NOT_TRUSTED, OWNER_UNAVAILABLE, OUTCOME_UNKNOWN, OTHER_CALL, LOCAL.
	Code string   `json:"code"`
	What string   `json:"what"`
	Next []string `json:"next,omitempty"`
}

func (p *Problem) Error() string { return p.Code + ": " + p.What }

// result is the problem as a tool's result. It has no structured content, which would have to
// be that of a success; the problem is in _meta for programs.
func (p *Problem) result() *sdk.CallToolResult {
	lines := []string{p.Error()}
	for _, n := range p.Next {
		lines = append(lines, "next: "+n)
	}
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: strings.Join(lines, "\n")}},
		Meta: sdk.Meta{"coordinator/problem": p}}
}

// badArgument refuses what was asked for.
func badArgument(format string, args ...any) *Problem {
	return &Problem{Code: "BAD_ARGUMENT", What: fmt.Sprintf(format, args...), Next: []string{"correct the argument and call again"}}
}

// notFound says that an object is not in the view.
func notFound(kind frames.ObjectKind, id fmt.Stringer) *Problem {
	return &Problem{Code: "NOT_FOUND", What: fmt.Sprintf("no %v of id %v is visible to this key", kind, id),
		Next: []string{"check the id, which a list tool gives"}}
}

// Causes of contexts that this server ends.
var (
	errTimeout    = errors.New("timed out")
	errNotCurrent = errors.New("the view did not become current in time")
)

// explain turns any error into a problem. What others chose the words of is made inert.
func explain(err error) *Problem {
	p := classify(err)
	p.What = text.Clip(text.Inert(p.What), maxProblem)
	return p
}

// maxProblem bounds the text of a problem.
const maxProblem = 2 << 10

func classify(err error) *Problem {
	var done *Problem
	if errors.As(err, &done) {
		p := *done
		return &p
	}
	for _, try := range []func(error) *Problem{explainOwner, explainTrust, explainRefusal, explainLocal, explainReach} {
		if p := try(err); p != nil {
			return p
		}
	}
	return &Problem{Code: "LOCAL", What: err.Error(), Next: []string{"tell the person who runs this server"}}
}

func explainOwner(err error) *Problem {
	var oe *runs.OwnerError
	if !errors.As(err, &oe) {
		return nil
	}
	p := &Problem{Code: "OWNER_UNAVAILABLE", What: oe.Error()}
	var refused *owner.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Code == frames.CodeAuthenticationFailed:
		p.Code, p.Next = refused.Code.String(), []string{"a person must enrol this key at the owner for reading output (ownerd keys add --scope output)"}
	case errors.As(err, &refused):
		p.Code, p.Next = refused.Code.String(), []string{"look at the owner's log"}
	case errors.Is(err, owner.ErrImpostor):
		p.Code, p.Next = "NOT_TRUSTED", []string{"a person must check `authority` of [[owner]] in the context file against what ownerd status prints"}
	default:
		p.Next = []string{"call again in a few seconds; if it stays so, a person must see whether the process owner runs"}
	}
	return p
}

// explainTrust words what the client does not trust about the server, or the server about the
// client. No repetition by the agent changes any of it.
func explainTrust(err error) *Problem {
	p := &Problem{Code: "NOT_TRUSTED", What: err.Error()}
	switch {
	case errors.As(err, new(*client.AuthenticationError)):
		p.Code, p.Next = frames.CodeAuthenticationFailed.String(), []string{"a person must enrol this server's key (coordinatord keys add), or name another with --key"}
	case errors.As(err, new(*client.PeerError)):
		p.Next = []string{"this is not the coordinator that the context pins; a person must check the context file"}
	case errors.As(err, new(*client.LowerAuthorityError)):
		p.Next = []string{"an outdated coordinator answers; a person must stop it"}
	case errors.As(err, new(*client.QuarantineError)):
		p.Next = []string{"two servers claim one authority; a person must find out which is the right one"}
	default:
		return nil
	}
	return p
}

// explainRefusal words a COORD_ERROR, whether it ended the connection or one request.
func explainRefusal(err error) *Problem {
	var refused *client.RefusedError
	var fatal *client.FatalError
	var local *frames.Refusal
	var code frames.Code
	switch {
	case errors.As(err, &refused):
		code = refused.Code
	case errors.As(err, &fatal):
		code = fatal.Code
	case errors.As(err, &local):
		code = local.Code
	default:
		return nil
	}
	p := &Problem{Code: code.String(), What: err.Error()}
	switch code {
	case frames.CodeScopeDenied:
		p.Next = []string{"this key may not do that; a person must enrol it with the scope that the call needs"}
	case frames.CodeNotFound:
		p.Next = []string{"check the id, which a list tool gives"}
	case frames.CodeRevisionConflict:
		p.Next = []string{"the object has changed or its state does not allow this; read it again, then decide anew"}
	case frames.CodeOperationConflict:
		p.Next = []string{"that operation_id belongs to another command; leave it away or take one from new_operation_id"}
	case frames.CodeResourceExhausted:
		p.Next = []string{"wait and call again; if it stays so, a person must make room or raise the quota"}
	case frames.CodeFrameTooLarge:
		p.Next = []string{"make the document smaller"}
	case frames.CodeAuthorityFenced, frames.CodeStaleAuthority:
		p.Next = []string{"another coordinator is taking over; call again in a few seconds"}
	case frames.CodeCapabilityRequired, frames.CodeVersionIncompatible:
		p.Next = []string{"the running coordinator does not offer this; a person must bring it up to date"}
	default:
		p.Next = []string{"read the objects that the call names, then decide anew"}
	}
	return p
}

// explainLocal words what is wrong on this machine.
func explainLocal(err error) *Problem {
	var full *client.ReplicaFullError
	switch {
	case errors.As(err, &full):
		return &Problem{Code: "LOCAL", What: "this server cannot hold all records: " + full.Error(), Next: []string{"tell the person who runs this server; archive objectives that have ended"}}
	case errors.Is(err, client.ErrJournalFull):
		return &Problem{Code: "LOCAL", What: err.Error(), Next: []string{"find out what became of the unresolved operations: status lists them, get_operation resolves them"}}
	case errors.As(err, new(*client.ContextError)), errors.As(err, new(*client.KeyError)), errors.As(err, new(*client.StateError)), errors.As(err, new(*durable.UnsafeFileError)):
		return &Problem{Code: "LOCAL", What: err.Error(), Next: []string{"tell the person who runs this server"}}
	}
	return nil
}

// explainReach words why the coordinator cannot be reached.
func explainReach(err error) *Problem {
	var path *fs.PathError
	switch {
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return &Problem{Code: "TIMED_OUT", What: "no answer from the coordinator in time", Next: []string{"call again; if it stays so, a person must see whether the coordinator runs"}}
	case errors.Is(err, context.Canceled):
		return &Problem{Code: "TIMED_OUT", What: "the call was cancelled", Next: []string{"call again when the answer is wanted"}}
	case errors.As(err, &path) && !errors.Is(err, syscall.ENOENT):
		return nil
	case errors.Is(err, errNotCurrent), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, client.ErrDisconnected),
		errors.Is(err, client.ErrExpired), errors.Is(err, client.ErrSuperseded), errors.Is(err, quicnet.ErrNoAnswer), errors.Is(err, quicnet.ErrNobody):
		return &Problem{Code: "UNAVAILABLE", What: "the coordinator cannot be reached: " + err.Error(),
			Next: []string{"call again in a few seconds; if it stays so, a person must start it (coordctl up)"}}
	}
	return nil
}
