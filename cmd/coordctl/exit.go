package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/internal/durable"
	"coordinator/internal/quicnet"
	"coordinator/internal/shell"
	"coordinator/internal/sock"
)

// Exit codes of coordctl.
const (
	exitDone           = 0
	exitOther          = 1
	exitUsage          = 2
	exitRefused        = 3
	exitAuthentication = 4
	exitUnavailable    = 5
	exitUnknown        = 6
)

// A message is what a failed command tells a person: what happened, where, what it means
// for the command, and what to do next.
type message struct {
	code int
	what string
	sent string // whether the command may have run; empty where there was none
	next []string
	// hopeless says that the same command would meet the same end.
	hopeless bool
}

// report prints err for a person and returns the exit code.
func (a *app) report(err error) int {
	m := a.explain(err)
	var b strings.Builder
	fmt.Fprintf(&b, "coordctl: %s\n", m.what)
	if m.sent != "" {
		fmt.Fprintf(&b, "  %s\n", m.sent)
	}
	for _, line := range m.next {
		fmt.Fprintf(&b, "  next: %s\n", line)
	}
	fmt.Fprint(a.stderr, b.String())
	return m.code
}

// line is a command line that finds the same coordinator again.
func (a *app) line(args string) string {
	if a.contextPath == a.usual() {
		return "coordctl " + args
	}
	return "coordctl --context " + shell.Quote(a.contextPath) + " " + args
}

// upLine is the command line that brings up the context's coordinator, as far as the place
// of the context file tells.
func (a *app) upLine() string {
	dir, rest := filepath.Split(a.contextPath)
	if a.contextPath == defaultContext() || rest != "context.toml" && rest != "context-quic.toml" || filepath.Base(dir) != "client" {
		return "coordctl up"
	}
	return "coordctl up --state " + shell.Quote(filepath.Dir(filepath.Clean(dir)))
}

// again is what sends the same command again.
type again struct {
	args  string // of coordctl, safe to paste
	input bool   // and the same standard input
}

// again words it, with the context that finds the same coordinator.
func (a *app) again(how string, g again) string {
	if g.input {
		how += " (with the same standard input)"
	}
	return how + ": " + a.line(g.args)
}

// commandError is a failed command that had an OperationId, with the line that sends the
// same command again. retried says that an attempt under that id had been made before.
type commandError struct {
	op      frames.OperationID
	retry   again // empty where the command is to be given anew
	retried bool
	cause   error
}

func (e *commandError) Error() string { return e.cause.Error() }
func (e *commandError) Unwrap() error { return e.cause }

// afterwardsError is what failed once the operation had its result: printing it, or
// remembering it.
type afterwardsError struct {
	op    frames.OperationID
	cause error
}

func (e *afterwardsError) Error() string { return e.cause.Error() }
func (e *afterwardsError) Unwrap() error { return e.cause }

// resultError is an operation that ended other than SUCCEEDED.
type resultError struct {
	op     frames.OperationID
	result frames.OperationResult
}

func (e *resultError) Error() string {
	switch r := e.result; r.State {
	case frames.OperationRejected:
		if r.Message == "" {
			return fmt.Sprintf("operation %s: REJECTED %v", e.op, r.Code)
		}
		return fmt.Sprintf("operation %s: REJECTED %v: %s", e.op, r.Code, printable(r.Message))
	case frames.OperationIndeterminate:
		return fmt.Sprintf("operation %s: INDETERMINATE %v", e.op, r.Reason)
	}
	return fmt.Sprintf("operation %s: %v", e.op, e.result.State)
}

// explain sorts err into an exit code and words. The order matters: whether a command may
// have run comes before why.
func (a *app) explain(err error) message {
	var (
		use     *usageError
		unknown *client.OutcomeUnknownError
		result  *resultError
		after   *afterwardsError
		before  *notStartedError
		lost    *lostRunError
		never   *impossibleError
		late    *waitedError
	)
	switch {
	case errors.As(err, &before):
		m := a.explain(before.cause)
		m.sent = "no run was started; of this command at most its objective was created"
		return m
	case errors.As(err, &lost):
		return message{code: exitUnknown, what: lost.Error(), next: []string{
			"give --op where the command was given, with the context that it was given with",
			"or look at the runs before you decide on a new one: " + a.line("get run")}}
	case errors.As(err, &after):
		return message{code: exitOther, what: after.Error(),
			sent: fmt.Sprintf("operation %s has been answered: its result stands, only what came afterwards failed", after.op),
			next: []string{"see it: " + a.line("op get "+after.op.String())}}
	case errors.As(err, &use):
		return message{code: exitUsage, what: use.text}
	case errors.As(err, &never):
		return message{code: exitOther, what: never.text}
	case errors.As(err, &late):
		return message{code: exitUnavailable, what: late.text, next: []string{"--timeout gives it longer"}}
	case errors.Is(err, errDifferent):
		return message{code: exitOther, what: err.Error()}
	case errors.As(err, &result):
		return a.explainResult(result)
	case errors.As(err, &unknown):
		return a.explainUnknown(err, unknown)
	}
	m := a.explainCause(err)
	var ce *commandError
	if !errors.As(err, &ce) {
		return m
	}
	var ind *client.IndeterminateError
	var other *client.OtherCommandError
	switch {
	case errors.As(err, &ind), errors.As(err, &other):
		m.sent = "it was not sent again"
	case errors.Is(err, client.ErrNotSent):
		m.sent = fmt.Sprintf("nothing was sent: operation %s did not run", ce.op)
		if ce.retried {
			m.sent = fmt.Sprintf("nothing was sent this time; operation %s may have run before", ce.op)
		}
		if !m.hopeless && ce.retry.args != "" {
			m.next = append(m.next, a.again("then again", ce.retry))
		}
	default:
		m.sent = fmt.Sprintf("nothing was done: this command did not run (operation %s)", ce.op)
	}
	return m
}

func (a *app) explainResult(e *resultError) message {
	m := message{code: exitRefused, what: e.Error()}
	switch e.result.State {
	case frames.OperationUnknown:
		m.code = exitUnknown
		m.next = []string{"no operation of that id is known to this authority, or this key may not see it; the same command may be sent again with --op " + e.op.String()}
	case frames.OperationIndeterminate:
		m.code = exitUnknown
		m.next = []string{"nobody can prove whether it took effect; look at the objects that it names before you decide on new work"}
	case frames.OperationRejected:
		m.sent = "the coordinator decided against it, and recorded that: no process was started or ended for it"
	}
	return m
}

func (a *app) explainUnknown(err error, u *client.OutcomeUnknownError) message {
	m := message{
		code: exitUnknown,
		what: fmt.Sprintf("no answer to operation %s: %s", u.OperationID, a.explainCause(u.Cause).what),
		sent: "the command may have run",
		next: []string{"find out: " + a.line("op get "+u.OperationID.String())},
	}
	var ce *commandError
	if errors.As(err, &ce) && ce.retry.args != "" {
		m.next = append(m.next, a.again("the same command again, which never runs it twice", ce.retry))
	}
	return m
}

// explainCause words an error whose effect on a command is told elsewhere.
func (a *app) explainCause(err error) message {
	for _, try := range []func(error) (message, bool){a.explainOwner, a.explainTrust, a.explainRefusal, a.explainLocal, a.explainReach} {
		if m, ok := try(err); ok {
			return m
		}
	}
	return message{code: exitOther, what: err.Error()}
}

// explainTrust words what the client does not trust about the server, or the server about
// the client.
func (a *app) explainTrust(err error) (message, bool) {
	var (
		auth       *client.AuthenticationError
		peer       *client.PeerError
		lower      *client.LowerAuthorityError
		quarantine *client.QuarantineError
	)
	m := message{code: exitAuthentication}
	switch {
	case errors.As(err, &auth):
		m.what = auth.Error() + ": " + auth.KeyID.String()
		switch {
		case auth.Revoked || auth.AcceptedBefore:
			m.next = []string{"this key was accepted before, so it has since been revoked, removed or narrowed, or has expired; look with: coordinatord keys --state DIR list",
				"enrol a new key: coordctl keygen --out FILE, coordinatord keys --state DIR add, key_file in " + a.contextPath}
		default:
			m.next = []string{a.enrolLine()}
		}
	case errors.As(err, &peer):
		m.what = "this is not the coordinator that the context pins: " + peer.Error()
		m.next = []string{"check socket, authority, coordinator_id and the witness pins in " + a.contextPath + " against the coordinator that you mean"}
	case errors.As(err, &lower):
		m.what = "an outdated coordinator answers: " + lower.Error()
		m.next = []string{"stop the old one, or a copy of its store, and start the current one"}
	case errors.As(err, &quarantine):
		m.what = quarantine.Error()
		m.next = []string{"find out which server is the right one and stop the other; then remove " + quarantine.StateFile}
	default:
		return m, false
	}
	return m, true
}

// explainRefusal words a COORD_ERROR.
func (a *app) explainRefusal(err error) (message, bool) {
	var (
		refused *client.RefusedError
		fatal   *client.FatalError
		lost    *client.LostHistory
		local   *frames.Refusal
	)
	code, what := frames.Code(0), ""
	switch {
	case errors.As(err, &lost):
		return message{code: exitUnavailable, what: "HISTORY_LOST: " + lost.Error(), next: []string{
			"a backup was restored, most likely: look at what is there (" + a.line("get objective") + ") before sending new work; this is reported once",
			"operations that were unresolved are indeterminate and are not sent again",
		}}, true
	case errors.As(err, &refused):
		code, what = refused.Code, printable(refused.Error())
	case errors.As(err, &fatal):
		code, what = fatal.Code, printable(fatal.Error())
	case errors.As(err, &local): // this side's own refusal, of what the other one would refuse
		code, what = local.Code, local.Error()
	default:
		return message{}, false
	}
	m := message{code: exitRefused, what: what}
	switch code {
	case frames.CodeVersionIncompatible:
		m.what += fmt.Sprintf(" (this coordctl speaks %d.%d)", frames.VersionMajor, frames.VersionMinor)
		m.next = []string{"use the coordctl that belongs to the running coordinator's version"}
	case frames.CodeAuthorityFenced:
		m.code = exitUnavailable
		m.next = []string{"the coordinator has lost its lease and is ending; its successor serves soon, try again then"}
	case frames.CodeStaleAuthority:
		m.next = []string{"another coordinator has taken over; try again, the new one is met on the next connection"}
	case frames.CodeScopeDenied:
		m.next = []string{"enrol this key with the scope that the command needs: coordinatord keys --state DIR add --scope …"}
	case frames.CodeFrameTooLarge:
		m.hopeless = true
		m.next = []string{"make the document smaller"}
	case frames.CodeNotFound:
		m.hopeless = true
	case frames.CodeCapabilityRequired:
		m.hopeless = true
		m.next = []string{"the running coordinator does not offer what this command needs"}
	case frames.CodeResourceExhausted:
		m.next = []string{"wait until others finish, make room on the coordinator's disk, or raise the quota in coordinator.toml"}
	case frames.CodeRevisionConflict:
		m.next = []string{"look at the object as it is now, then decide: " + a.line("get objective ID")}
	case frames.CodeOperationConflict:
		m.next = []string{"that operation id belongs to another command or key; leave --op away to begin a new operation"}
	}
	return m, true
}

// explainLocal words what is wrong on this machine.
func (a *app) explainLocal(err error) (message, bool) {
	var (
		ctxErr *client.ContextError
		state  *client.StateError
		file   *client.SnapshotFileError
		unsafe *durable.UnsafeFileError
		other  *client.OtherCommandError
		ind    *client.IndeterminateError
		held   *heldError
		long   *sock.PathTooLongError
		key    *client.KeyError
	)
	switch {
	case errors.As(err, &ctxErr):
		return message{code: exitUsage, what: ctxErr.Error(), next: []string{"mend that, or name another context file with --context FILE"}}, true
	case errors.As(err, &key):
		return message{code: exitUsage, what: key.Error()}, true
	case errors.As(err, &state):
		return message{code: exitOther, what: state.Error()}, true
	case errors.As(err, &file):
		return message{code: exitOther, what: file.Error()}, true
	case errors.As(err, &held):
		return message{code: exitOther, what: held.Error()}, true
	case errors.As(err, &unsafe):
		return message{code: exitOther, what: unsafe.Error()}, true
	case errors.As(err, &long):
		return message{code: exitUsage, what: long.Error()}, true
	case errors.As(err, &other):
		return message{code: exitRefused, what: other.Error(), next: []string{"give the very same command, or leave --op away to begin a new operation"}}, true
	case errors.As(err, &ind):
		return message{code: exitUnknown, what: ind.Error(), next: []string{"look at the objects that it names, then decide on new work with a new operation"}}, true
	case errors.Is(err, client.ErrJournalFull):
		return message{code: exitOther, what: err.Error(), next: []string{"find out what became of them: " + a.line("op list")}}, true
	}
	return message{}, false
}

// explainReach words why the coordinator cannot be reached.
func (a *app) explainReach(err error) (message, bool) {
	m := message{code: exitUnavailable}
	var path *fs.PathError
	var name *net.DNSError
	where := a.socketPath()
	switch {
	case errors.As(err, &path) && errors.Is(err, fs.ErrNotExist) && !a.isContext(path.Path):
		return message{code: exitUsage, what: path.Path + " does not exist"}, true
	case errors.As(err, &path) && errors.Is(err, fs.ErrNotExist):
		return message{code: exitUsage, what: path.Path + " does not exist" + contextHint(a.contextPath), next: []string{"start a coordinator with: " + a.upLine(), "or name its context file with --context FILE"}}, true
	case errors.As(err, &path) && errors.Is(err, fs.ErrPermission):
		return message{code: exitOther, what: "no permission to " + path.Op + " " + path.Path, next: []string{"run as the user who owns it"}}, true
	case errors.Is(err, errTimeout):
		m.what = fmt.Sprintf("timed out after %v at %s", a.timeout, where)
		m.next = []string{"see whether the coordinator runs and is not stopped; --timeout gives it longer"}
	case errors.Is(err, errInterrupted):
		m.what = "interrupted"
	case errors.Is(err, syscall.ENOENT):
		m.what = "no coordinator: there is no socket at " + where
		m.next = []string{"start one with: " + a.upLine()}
	case errors.Is(err, syscall.ECONNREFUSED) && !isSocket(where):
		m.code, m.what = exitUsage, where+" is not a socket"
		m.next = []string{"correct `socket` in " + a.contextPath + ", or move what is there away if the coordinator's socket belongs there"}
	case errors.Is(err, syscall.ECONNREFUSED):
		m.what = "no coordinator: nobody listens at " + where
		m.next = []string{"it has stopped or crashed; start it with: " + a.upLine()}
	case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM):
		m.what = "no permission to use the socket " + where
		m.next = []string{"only the user who runs the coordinator may: run coordctl as that user"}
	case errors.Is(err, quicnet.ErrNobody):
		m.what = "no coordinator: nothing listens at " + where + " over UDP"
		m.next = []string{"start one there with `quic` in its coordinator.toml, or correct `quic` in " + a.contextPath}
	case errors.Is(err, quicnet.ErrLabel):
		m.code, m.what = exitAuthentication, "what listens at "+where+" is no coordinator"
		m.next = []string{"correct `quic` in " + a.contextPath}
	case errors.Is(err, quicnet.ErrNoAnswer), errors.Is(err, quicnet.ErrBusy), errors.As(err, &name):
		m.what = plain(err)
		m.next = []string{"try again; if it stays so, look at `quic` in " + a.contextPath + " and at the network between here and there"}
	case errors.Is(err, client.ErrExpired):
		m.what = "the coordinator's lease ran out before it was renewed: it is not in charge any more"
		m.next = []string{"try again once its successor serves"}
	case errors.Is(err, client.ErrDisconnected), errors.Is(err, client.ErrProtocol), errors.Is(err, client.ErrSuperseded):
		m.what = "at " + where + ": " + plain(err)
		m.next = []string{"try again; if it stays so, look at the coordinator's log"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, client.ErrNotSent):
		m.what = "at " + where + ": " + plain(err)
	default:
		return m, false
	}
	return m, true
}

// isContext reports whether path is this run's context file.
func (a *app) isContext(path string) bool {
	abs, err := filepath.Abs(a.contextPath)
	return err == nil && abs == path
}

// isSocket reports whether path may be a socket: it is one, or it cannot be looked at.
func isSocket(path string) bool {
	st, err := os.Lstat(path)
	return err != nil || st.Mode()&fs.ModeSocket != 0
}

// plain drops the word that the message says in its own line.
func plain(err error) string { return strings.TrimPrefix(err.Error(), "not sent: ") }

// socketPath is where the context's coordinator listens, as far as it can be read.
func (a *app) socketPath() string {
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return "the coordinator's socket"
	}
	if c.Socket == "" {
		return c.QUIC
	}
	return c.Socket
}
