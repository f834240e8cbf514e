package client

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/sys/unix"

	"coordinator/frames"
	"coordinator/handshake"
)

// spyAgent counts what it is asked to sign, and may sign something else.
type spyAgent struct {
	agent.Agent
	mu     sync.Mutex
	signed int
	forge  func(*ssh.Signature)
}

func (a *spyAgent) Sign(key ssh.PublicKey, data []byte) (*ssh.Signature, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.signed++
	s, err := a.Agent.Sign(key, data)
	if err == nil && a.forge != nil {
		a.forge(s)
	}
	return s, err
}

func (a *spyAgent) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.signed
}

// newAgent serves an agent on SSH_AUTH_SOCK.
func newAgent(t *testing.T) *spyAgent {
	a := &spyAgent{Agent: agent.NewKeyring()}
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			agent.ServeAgent(a, nc) //nolint:errcheck // it ends with the connection
			nc.Close()
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	t.Setenv(agentVariable, path)
	return a
}

// enrol adds a new Ed25519 key to the agent and gives its public half.
func (a *spyAgent) enrol(t *testing.T) [32]byte {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	require.NoError(t, a.Add(agent.AddedKey{PrivateKey: private}))
	return [32]byte(public)
}

func forgeProof(c *frames.WorkloadChallenge) { c.Proof[7] ^= 1 }
func forgeNonce(c *frames.WorkloadChallenge) { c.ClientNonce[7] ^= 1 }

func TestAgentProvesItsKey(t *testing.T) {
	a := newAgent(t)
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	require.NoError(t, a.Add(agent.AddedKey{PrivateKey: r}))
	_, err = OpenKey("agent")
	require.ErrorContains(t, err, "no plain Ed25519 key")
	public := a.enrol(t)

	for _, tt := range []struct{ name, source string }{
		{"the only one", ""},
		{"by its public key", ":" + handshake.FormatPublicKey(public)},
		{"by its id", ":" + handshake.FormatKeyID(handshake.KeyIDOf(public))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.enrolled = &public
			w.pins.KeyFile, w.pins.Agent = "", "ssh-agent"+tt.source
			opts := w.options(func(p *peer) { p.recv() })
			opts.Key = nil
			c, err := Dial(t.Context(), w.pins, opts)
			require.NoError(t, err)
			require.Equal(t, handshake.KeyIDOf(public), c.Info().KeyID)
			require.NoError(t, c.Close())
			opened, err := OpenKey("agent" + tt.source)
			require.NoError(t, err)
			require.Equal(t, public, opened.Public())
		})
	}
	second := a.enrol(t)
	_, err = OpenKey("agent")
	require.ErrorContains(t, err, handshake.FormatPublicKey(second), "it names what there is")
	k, err := OpenKey("agent:" + handshake.FormatPublicKey(second))
	require.NoError(t, err)
	require.Equal(t, second, k.Public())
	_, err = OpenKey("agent:" + handshake.FormatPublicKey(key(t).Public()))
	require.ErrorContains(t, err, "does not hold that key")
	_, err = OpenKey("agent:nothing")
	require.ErrorContains(t, err, "names no key")
}

// TestC04_AgentSignsNothingForAServerThatIsNotProven counts the agent's signatures for
// servers that fail before and after their proof.
func TestC04_AgentSignsNothingForAServerThatIsNotProven(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(w *world)
	}{
		{"another authority key", func(w *world) { w.authority = key(w.t) }},
		{"a proof relayed from another connection", func(w *world) { w.cred.PID++ }},
		{"a proof that does not verify", func(w *world) { w.challenge = forgeProof }},
		{"a challenge for another offer", func(w *world) { w.challenge = forgeNonce }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAgent(t)
			public := a.enrol(t)
			w := newWorld(t)
			w.enrolled = &public
			w.pins.KeyFile, w.pins.Agent = "", "ssh-agent"
			tt.do(w)
			opts := w.options(nil)
			opts.Key = nil
			_, err := Dial(t.Context(), w.pins, opts)
			require.ErrorAs(t, err, new(*PeerError))
			require.Zero(t, a.count())
		})
	}
}

func TestAgentThatSignsSomethingElse(t *testing.T) {
	a := newAgent(t)
	a.enrol(t)
	k, err := OpenKey("agent")
	require.NoError(t, err)
	_, err = k.Sign([]byte("message"))
	require.NoError(t, err)
	for _, forge := range []func(*ssh.Signature){
		func(s *ssh.Signature) { s.Blob[5] ^= 1 },
		func(s *ssh.Signature) { s.Blob = s.Blob[1:] },
		func(s *ssh.Signature) { s.Format = "ssh-rsa" },
		func(s *ssh.Signature) { s.Rest = []byte{1} },
	} {
		a.mu.Lock()
		a.forge = forge
		a.mu.Unlock()
		_, err := k.Sign([]byte("message"))
		require.ErrorAs(t, err, new(*KeyError))
	}
	t.Setenv(agentVariable, "/nonexistent")
	_, err = k.Sign([]byte("message"))
	require.ErrorIs(t, err, os.ErrNotExist)
	t.Setenv(agentVariable, "")
	_, err = OpenKey("agent")
	require.ErrorContains(t, err, agentVariable)
}

func TestKeysFromDescriptorsAndFiles(t *testing.T) {
	seed := make([]byte, seedBytes)
	_, err := rand.Read(seed)
	require.NoError(t, err)
	want := handshake.NewKey([32]byte(seed)).Public()
	pipe := func(content []byte) string {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		_, err = w.Write(content)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		fd, err := unix.Dup(int(r.Fd()))
		require.NoError(t, err)
		require.NoError(t, r.Close())
		return fmt.Sprintf("fd:%d", fd)
	}
	k, err := OpenKey(pipe(seed))
	require.NoError(t, err)
	require.Equal(t, want, k.Public())
	for _, bad := range [][]byte{nil, seed[1:], append(seed[:32:32], '\n')} {
		_, err := OpenKey(pipe(bad))
		var ke *KeyError
		require.ErrorAs(t, err, &ke)
		require.NotContains(t, err.Error(), fmt.Sprintf("%x", seed[:4]))
	}
	for _, source := range []string{"fd:", "fd:-1", "fd:x", "fd:99999999999", "fd:1000000"} {
		_, err := OpenKey(source)
		require.ErrorAs(t, err, new(*KeyError), source)
	}
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, seed, 0o600))
	k, err = OpenKey(path)
	require.NoError(t, err)
	require.Equal(t, want, k.Public())
	require.NoError(t, os.Chmod(path, 0o644))
	_, err = OpenKey(path)
	require.ErrorAs(t, err, new(*KeyError))
	_, err = OpenKey(path + "x")
	require.True(t, errors.Is(err, os.ErrNotExist))
}
