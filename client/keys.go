package client

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"coordinator/frames"
	"coordinator/handshake"
)

const (
	// agentName is the one kind of agent: what `agent` in a context file begins with.
	agentName = "ssh-agent"
	// agentVariable names the agent's socket.
	agentVariable = "SSH_AUTH_SOCK"
	// agentLimit bounds one request to the agent. The coordinator waits 5 s for a response
	// (protocol.md §5.5), so an agent that first asks its user must be quick.
	agentLimit = 5 * time.Second
)

// A KeyError says why a client's key cannot be used. It never holds any of it.
type KeyError struct {
	Source  string // as it was given: a path, fd:N or agent
	Problem string
	Cause   error // may be nil
}

func (e *KeyError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("key %s: %s: %v", e.Source, e.Problem, e.Cause)
	}
	return fmt.Sprintf("key %s: %s", e.Source, e.Problem)
}

// Unwrap gives the error of the system or the agent, if there is one.
func (e *KeyError) Unwrap() error { return e.Cause }

// OpenKey gives the key that source names:
//
//	FILE                a file of 32 bytes, readable by its owner alone
//	fd:N                an inherited descriptor that gives 32 bytes and ends; it is closed
//	agent               the one Ed25519 key of the ssh-agent at SSH_AUTH_SOCK
//	agent:ed25519:<hex> the key of the agent with this public key
//	agent:sha256:<hex>  the key of the agent with this key id
//
// An agent signs the transcript of the handshake, and only after the server has proved
// the pinned authority key (protocol.md §5.5). Errors are *[KeyError].
func OpenKey(source string) (handshake.Signer, error) {
	if n, ok := strings.CutPrefix(source, "fd:"); ok {
		fd, err := strconv.ParseUint(n, 10, 31)
		if err != nil {
			return nil, &KeyError{Source: source, Problem: "want fd: and the number of an open descriptor"}
		}
		return descriptorKey(source, os.NewFile(uintptr(fd), source))
	}
	if source == "agent" || strings.HasPrefix(source, "agent:") {
		return agentKey(source, strings.TrimPrefix(strings.TrimPrefix(source, "agent"), ":"))
	}
	key, err := handshake.LoadClientKey(source)
	if err != nil {
		return nil, &KeyError{Source: source, Problem: "cannot be used", Cause: err}
	}
	return key, nil
}

// key is the key that the context names.
func (c *Context) key() (handshake.Signer, error) {
	if c.KeyFile != "" {
		key, err := handshake.LoadClientKey(c.KeyFile)
		if err != nil {
			return nil, &ContextError{c.Path, "key_file: " + err.Error()}
		}
		return key, nil
	}
	which, ok := strings.CutPrefix(c.Agent, agentName)
	if !ok || which != "" && which[0] != ':' {
		return nil, &ContextError{c.Path, fmt.Sprintf("agent: want %q, or %q and the key's ed25519: or sha256: text behind it", agentName, agentName+":")}
	}
	return agentKey(c.Agent, strings.TrimPrefix(which, ":"))
}

// descriptorKey reads a seed to the descriptor's end.
func descriptorKey(source string, f *os.File) (handshake.Signer, error) {
	if f == nil {
		return nil, &KeyError{Source: source, Problem: "no such descriptor"}
	}
	defer f.Close()
	raw := make([]byte, seedBytes+1)
	defer clear(raw)
	n, err := io.ReadFull(f, raw)
	switch {
	case err == nil || n != seedBytes && (errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)):
		return nil, &KeyError{Source: source, Problem: fmt.Sprintf("a key is %d bytes and then the end", seedBytes)}
	case !errors.Is(err, io.ErrUnexpectedEOF):
		return nil, &KeyError{Source: source, Problem: "cannot be read", Cause: err}
	}
	return handshake.NewKey([32]byte(raw[:seedBytes])), nil
}

// An agentSigner signs through the agent, on a connection of its own each time.
type agentSigner struct {
	source string
	public [32]byte
	key    ssh.PublicKey
}

// agentKey finds the key that which names, or the only one. It asks for no signature.
func agentKey(source, which string) (handshake.Signer, error) {
	wanted := func([32]byte) bool { return true }
	if which != "" {
		if public, err := handshake.ParsePublicKey(which); err == nil {
			wanted = func(k [32]byte) bool { return k == public }
		} else if id, err := handshake.ParseKeyID(which); err == nil {
			wanted = func(k [32]byte) bool { return handshake.KeyIDOf(k) == frames.KeyID(id) }
		} else {
			return nil, &KeyError{Source: source, Problem: "names no key: want ed25519: (the public key) or sha256: (its id) and 64 lowercase hex digits"}
		}
	}
	var held []*agentSigner
	err := withAgent(source, func(a agent.Agent) error {
		keys, err := a.List()
		for _, k := range keys {
			if s := usable(source, k); s != nil {
				held = append(held, s)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range held {
		names = append(names, handshake.FormatPublicKey(s.public))
	}
	if len(held) == 0 {
		return nil, &KeyError{Source: source, Problem: "the agent holds no plain Ed25519 key; add one with ssh-add"}
	}
	held = slices.DeleteFunc(held, func(s *agentSigner) bool { return !wanted(s.public) })
	switch {
	case len(held) == 0:
		return nil, &KeyError{Source: source, Problem: "the agent does not hold that key; it holds " + strings.Join(names, ", ")}
	case len(held) > 1:
		return nil, &KeyError{Source: source, Problem: "the agent holds several Ed25519 keys; name the enrolled one, as in agent:" + names[0] + ": it holds " + strings.Join(names, ", ")}
	}
	return held[0], nil
}

// usable is a signer for a plain Ed25519 key. Certificates and keys of a security token
// do not sign the raw message.
func usable(source string, k *agent.Key) *agentSigner {
	if k.Format != ssh.KeyAlgoED25519 {
		return nil
	}
	parsed, err := ssh.ParsePublicKey(k.Blob)
	if err != nil {
		return nil
	}
	crypto, ok := parsed.(ssh.CryptoPublicKey)
	if !ok {
		return nil
	}
	raw, ok := crypto.CryptoPublicKey().(ed25519.PublicKey)
	if !ok || handshake.CheckPublicKey(raw) != nil {
		return nil
	}
	return &agentSigner{source: source, public: [32]byte(raw), key: parsed}
}

// Public returns the raw public key.
func (s *agentSigner) Public() [32]byte { return s.public }

// Sign has the agent sign msg, and checks what it made of it.
func (s *agentSigner) Sign(msg []byte) (signature [64]byte, err error) {
	err = withAgent(s.source, func(a agent.Agent) error {
		sig, err := a.Sign(s.key, msg)
		if err != nil {
			return err
		}
		if sig.Format != ssh.KeyAlgoED25519 || len(sig.Blob) != len(signature) || len(sig.Rest) != 0 ||
			!handshake.Verify(s.public, msg, sig.Blob) {
			return errors.New("what it signed does not verify")
		}
		copy(signature[:], sig.Blob)
		return nil
	})
	return signature, err
}

// withAgent makes one request of the agent.
func withAgent(source string, request func(agent.Agent) error) error {
	path := os.Getenv(agentVariable)
	if path == "" {
		return &KeyError{Source: source, Problem: "no agent: " + agentVariable + " is not set; start one with ssh-agent"}
	}
	nc, err := net.DialTimeout("unix", path, agentLimit)
	if err != nil {
		return &KeyError{Source: source, Problem: "no agent answers at " + path, Cause: err}
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(agentLimit)) //nolint:errcheck // a socket takes deadlines
	// The client of a mere ReadWriter starts no goroutine.
	if err := request(agent.NewClient(struct{ io.ReadWriter }{nc})); err != nil {
		return &KeyError{Source: source, Problem: "the agent refused", Cause: err}
	}
	return nil
}
