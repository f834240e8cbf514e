package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/internal/sock"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code int
	}{
		{nil, ExitOK},
		{errors.New("x"), ExitFailure},
		{Exit(ExitFenced, errors.New("x")), ExitFenced},
		{fmt.Errorf("op: %w", Exit(ExitCorrupt, errors.New("x"))), ExitCorrupt},
		{Exit(ExitWitness, &durable.HeldError{}), ExitWitness},
		{fmt.Errorf("op: %w", &durable.HeldError{Path: "p"}), ExitHeld},
		{&sock.OccupiedError{Live: true}, ExitHeld},
		{&sock.OccupiedError{}, ExitConfig},
		{&sock.PathTooLongError{}, ExitConfig},
		{&durable.UnsafeFileError{}, ExitConfig},
		{fmt.Errorf("registry: %w", &handshake.RegistryError{}), ExitConfig},
		{Usage("no"), ExitUsage},
	} {
		require.Equal(t, tt.code, Code(tt.err), "%v", tt.err)
	}
	require.NoError(t, Exit(ExitFenced, nil))
}

func execute(t *testing.T, root *cobra.Command, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	root.SetOut(&o)
	root.SetArgs(args)
	code = Execute(t.Context(), root, &e)
	return code, o.String(), e.String()
}

// TestMistypedWords: the error names what is near, and the exit code is that of the command line.
func TestMistypedWords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	require.NoError(t, durable.MkdirPrivate(dir))
	require.NoError(t, handshake.CreateRegistry(filepath.Join(dir, registryFile)))
	run := func(args ...string) (int, string) {
		root := &cobra.Command{Use: "thing"}
		AddColor(root)
		root.AddCommand(KeysCommand(KeysOptions{State: &dir, Rules: handshake.Rules{Scopes: handshake.EndpointScopes()}, LoadWait: time.Second}))
		code, _, errs := execute(t, root, args...)
		return code, errs
	}
	code, errs := run("keys", "add", keyOne, "--label", "laptop")
	require.Equal(t, ExitOK, code, errs)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"kesy"}, `thing has no command "kesy"; did you mean keys?`},
		{[]string{"keys", "revok", "laptop"}, `thing keys has no command "revok"; did you mean revoke?`},
		{[]string{"kesy", "list", "-o", "json"}, `thing has no command "kesy"; did you mean keys?`},
		{[]string{"keys", "list", "--otput", "json"}, "unknown flag: --otput; did you mean --output?"},
		{[]string{"keys", "list", "-o", "jsn"}, "--output must be table or json; did you mean json?"},
		{[]string{"keys", "add", keyTwo, "--scope", "work_read,wrok_command"}, "did you mean work_command?"},
		{[]string{"keys", "revoke", "latpop"}, "did you mean laptop?"},
		{[]string{"keys", "list", "--color", "alway"}, "did you mean always?"},
	} {
		code, errs := run(tt.args...)
		require.Equal(t, ExitUsage, code, "%v: %s", tt.args, errs)
		require.Contains(t, errs, tt.want)
	}
}

// TestCompletion of labels, and of the words that flags take.
func TestCompletion(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	require.NoError(t, durable.MkdirPrivate(dir))
	require.NoError(t, handshake.CreateRegistry(filepath.Join(dir, registryFile)))
	run := func(args ...string) string {
		root := &cobra.Command{Use: "thing"}
		AddColor(root)
		root.AddCommand(KeysCommand(KeysOptions{State: &dir, Rules: handshake.Rules{Scopes: handshake.EndpointScopes()}, LoadWait: time.Second}))
		code, out, errs := execute(t, root, args...)
		require.Equal(t, ExitOK, code, errs)
		return out
	}
	run("keys", "add", keyOne, "--label", "laptop", "--scope", "work_read")
	run("keys", "add", keyTwo, "--label", "lost")
	run("keys", "revoke", "lost")
	require.Equal(t, "laptop\tactive, work_read\n:4\n", run("__complete", "keys", "revoke", ""))
	require.Equal(t, ":4\n", run("__complete", "keys", "revoke", "laptop", ""))
	require.Contains(t, run("__complete", "keys", "add", "--scope", ""), "work_command\n")
	require.Equal(t, "table\njson\n:4\n", run("__complete", "keys", "list", "-o", ""))
	require.Equal(t, "auto\nalways\nnever\n:4\n", run("__complete", "keys", "list", "--color", ""))
	dir = filepath.Join(dir, "none")
	require.Equal(t, ":4\n", run("__complete", "keys", "revoke", ""))
}

func TestUsageErrors(t *testing.T) {
	tree := func() *cobra.Command {
		root := &cobra.Command{Use: "thing"}
		sub := &cobra.Command{Use: "do NAME", Args: cobra.ExactArgs(1), RunE: func(c *cobra.Command, a []string) error {
			fmt.Fprintln(c.OutOrStdout(), "did", a[0])
			return nil
		}}
		sub.Flags().Int("count", 0, "")
		root.AddCommand(sub, &cobra.Command{Use: "fail", RunE: func(*cobra.Command, []string) error {
			return Exit(ExitCorrupt, errors.New("damaged"))
		}})
		return root
	}
	for _, args := range [][]string{{}, {"undo"}, {"do"}, {"do", "a", "b"}, {"do", "--colour", "a"}, {"do", "--count", "many", "a"}, {"fail", "extra"}} {
		code, out, errs := execute(t, tree(), args...)
		require.Equal(t, ExitUsage, code, "%v", args)
		require.Empty(t, out)
		require.Contains(t, errs, "thing: ")
		require.Contains(t, errs, "--help")
	}
	code, out, _ := execute(t, tree(), "do", "it")
	require.Equal(t, ExitOK, code)
	require.Equal(t, "did it\n", out)
	code, _, errs := execute(t, tree(), "fail")
	require.Equal(t, ExitCorrupt, code)
	require.Equal(t, "thing: damaged\n", errs)
}

func TestSignals(t *testing.T) {
	codes := make(chan int, 1)
	ctx, stop := Signals(t.Context(), func(code int) { codes <- code })
	defer stop()
	require.NoError(t, ctx.Err())
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	<-ctx.Done()
	var s *SignalError
	require.ErrorAs(t, context.Cause(ctx), &s)
	require.Equal(t, syscall.SIGTERM, s.Signal)
	require.Empty(t, codes, "the first one only asks")
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
	require.Equal(t, 128+int(syscall.SIGINT), <-codes)
}

// TestSignalsOfAClosedTerminal stops on SIGHUP like on the others.
func TestSignalsOfAClosedTerminal(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("these tests are to outlive their terminal")
	}
	ctx, stop := Signals(t.Context(), func(int) {})
	defer stop()
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	<-ctx.Done()
	require.ErrorContains(t, context.Cause(ctx), "hangup")
}

func TestLogFlags(t *testing.T) {
	var b bytes.Buffer
	f := LogFlags{Format: "json", Level: "warn"}
	log, err := f.Logger(&b)
	require.NoError(t, err)
	log.Info("quiet")
	log.Warn("loud", "n", 1)
	var line map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &line))
	require.Equal(t, "loud", line["msg"])
	for _, bad := range []LogFlags{{Format: "xml", Level: "info"}, {Format: "text", Level: "chatty"}} {
		_, err := bad.Logger(io.Discard)
		require.Equal(t, ExitUsage, Code(err))
	}
}

// TestConnectionsCanBeLeftOutOfTheLog keeps their warnings, and what is not theirs.
func TestConnectionsCanBeLeftOutOfTheLog(t *testing.T) {
	for _, shown := range []bool{true, false} {
		var b bytes.Buffer
		f := LogFlags{Format: "text", Level: "debug", Connections: shown}
		log, err := f.Logger(&b)
		require.NoError(t, err)
		log.Info("serving", "conn", "is a word here")
		conn := log.With("a", 1).With("conn", 7).WithGroup("g").With("b", 2)
		conn.Debug("routine debug")
		conn.Info("routine info")
		conn.Warn("proof refused")
		log.Info("registry loaded")
		for _, line := range []string{"serving", "proof refused", "registry loaded", "conn=7", "g.b=2"} {
			require.Contains(t, b.String(), line)
		}
		require.Equal(t, shown, strings.Contains(b.String(), "routine"))
	}
}

const (
	keyOne = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
	keyTwo = "ed25519:3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
)

// keysRig runs the keys commands against one state directory.
type keysRig struct {
	t    *testing.T
	opts KeysOptions
	dir  string
}

func newKeysRig(t *testing.T, link bool) *keysRig {
	dir := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, handshake.CreateRegistry(filepath.Join(dir, registryFile)))
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	return &keysRig{t: t, dir: dir, opts: KeysOptions{
		Rules: handshake.Rules{Scopes: handshake.ScopeNames{"activate": 1, "status": 2}, NeedCoordinator: link},
		Now:   func() time.Time { return now }, LoadWait: 300 * time.Millisecond,
	}}
}

func (r *keysRig) run(args ...string) (int, string, string) {
	root := &cobra.Command{Use: "linkd"}
	o := r.opts
	o.State = new(string)
	root.PersistentFlags().StringVar(o.State, "state", "", "")
	root.AddCommand(KeysCommand(o))
	return execute(r.t, root, append([]string{"keys", "--state", r.dir}, args...)...)
}

func (r *keysRig) registry() string { return filepath.Join(r.dir, "workload-keys") }

func TestKeysAddListRevoke(t *testing.T) {
	r := newKeysRig(t, false)
	code, out, errs := r.run("add", keyOne)
	require.Equal(t, ExitOK, code, errs)
	require.Contains(t, out, "enrolled sha256:")
	require.Contains(t, out, "scope=activate,status")
	require.Contains(t, out, "expires=2027-05-01T12:00:00Z")
	code, out, errs = r.run("add", "--scope", "status", "--expires", "720h", "--label", "watcher", keyTwo)
	require.Equal(t, ExitOK, code, errs)
	require.Contains(t, out, "label=watcher scope=status expires=2026-05-31T12:00:00Z")

	code, out, _ = r.run("list")
	require.Equal(t, ExitOK, code)
	require.Contains(t, out, "watcher")
	require.Contains(t, out, "active")

	code, out, errs = r.run("revoke", "watcher")
	require.Equal(t, ExitOK, code, errs)
	require.Contains(t, out, "revoked sha256:")
	code, out, _ = r.run("list", "-o", "json")
	require.Equal(t, ExitOK, code)
	var all []keyJSON
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	require.Len(t, all, 2)
	require.Equal(t, "active", all[0].State)
	require.Equal(t, []string{"activate", "status"}, all[0].Scope)
	require.Equal(t, keyTwo, all[1].PublicKey)
	require.Equal(t, "revoked", all[1].State)
	require.Equal(t, uint64(r.opts.Now().Unix()), *all[1].RevokedAt)

	code, _, errs = r.run("revoke", all[0].KeyID)
	require.Equal(t, ExitOK, code, errs)
	info, err := os.Stat(r.registry())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
}

func TestKeysRefusals(t *testing.T) {
	r := newKeysRig(t, true)
	weak := "ed25519:0100000000000000000000000000000000000000000000000000000000000000"
	coord := "--coordinator=00000000000000000000000000000001"
	empty, err := os.ReadFile(r.registry())
	require.NoError(t, err)
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"no key", []string{"add", coord}},
		{"short key", []string{"add", coord, keyOne[:70]}},
		{"key in capitals", []string{"add", coord, "ed25519:D75A980182B10AB7D54BFED3C964073A0EE172F3DAA62325AF021A68F707511A"}},
		{"small-order key", []string{"add", coord, weak}},
		{"unknown scope", []string{"add", coord, "--scope", "everything", keyOne}},
		{"empty scope", []string{"add", coord, "--scope", "", keyOne}},
		{"expiry in the past", []string{"add", coord, "--expires", "-1h", keyOne}},
		{"expiry long ago", []string{"add", coord, "--expires", "2020-01-01T00:00:00Z", keyOne}},
		{"expiry that is no time", []string{"add", coord, "--expires", "soon", keyOne}},
		{"label of two words", []string{"add", coord, "--label", "two words", keyOne}},
		{"no coordinator", []string{"add", keyOne}},
		{"zero coordinator", []string{"add", "--coordinator", "00000000000000000000000000000000", keyOne}},
		{"format", []string{"list", "-o", "yaml"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := r.run(tt.args...)
			require.Equal(t, ExitUsage, code, errs)
			require.Empty(t, out)
			after, err := os.ReadFile(r.registry())
			require.NoError(t, err)
			require.Equal(t, empty, after)
		})
	}
	code, _, errs := r.run("add", coord, keyOne)
	require.Equal(t, ExitOK, code, errs)
	code, _, errs = r.run("add", coord, keyOne)
	require.Equal(t, ExitFailure, code)
	require.Contains(t, errs, "enrolled already")
	code, _, errs = r.run("revoke", "nobody")
	require.Equal(t, ExitFailure, code)
	require.Contains(t, errs, "no such record")

	require.NoError(t, os.Chmod(r.registry(), 0o644))
	code, _, errs = r.run("list")
	require.Equal(t, ExitConfig, code)
	require.Contains(t, errs, "chmod 600")
	require.NoError(t, os.Remove(r.registry()))
	// Without a registry nothing is made: the directory is another one, or the file is lost.
	for _, args := range [][]string{{"list"}, {"revoke", "one"}, {"add", coord, keyOne}} {
		code, _, errs = r.run(args...)
		require.Equal(t, ExitConfig, code)
		require.Contains(t, errs, "there is no "+r.registry())
		require.NoFileExists(t, r.registry())
	}
}

// While a daemon follows the registry, an edit returns only once the daemon has it.
func TestKeysWaitForTheDaemon(t *testing.T) {
	r := newKeysRig(t, false)
	r.opts.LoadWait = 20 * time.Second
	reg, err := handshake.OpenRegistry(r.registry(), handshake.RegistryOptions{KnownScopes: r.opts.Rules.Scopes})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- reg.Run(ctx) }()
	defer func() { cancel(); require.ErrorIs(t, <-done, context.Canceled) }()
	require.Eventually(t, func() bool {
		_, err := os.Stat(r.registry() + ".loaded")
		return err == nil
	}, 10*time.Second, 5*time.Millisecond)

	code, _, errs := r.run("add", "--label", "one", keyOne)
	require.Equal(t, ExitOK, code, errs)
	pub, err := handshake.ParsePublicKey(keyOne)
	require.NoError(t, err)
	rec, ok := reg.Lookup(handshake.KeyIDOf(pub))
	require.True(t, ok, "add returned before the daemon had the key")
	require.False(t, rec.Revoked())
	code, _, errs = r.run("revoke", "one")
	require.Equal(t, ExitOK, code, errs)
	rec, _ = reg.Lookup(handshake.KeyIDOf(pub))
	require.True(t, rec.Revoked(), "revoke returned before the daemon had it")
}

// A daemon that never takes the edit is said to, after a bounded wait.
func TestKeysSayWhenTheDaemonIsStuck(t *testing.T) {
	r := newKeysRig(t, false)
	f, err := os.OpenFile(r.registry()+".loaded", os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	code, out, errs := r.run("add", keyOne)
	require.Equal(t, ExitFailure, code)
	require.Empty(t, out)
	require.Contains(t, errs, "enrolled in the file")
	require.Contains(t, errs, "see its log")
}
