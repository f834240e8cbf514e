package mcp

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"coordinator/client"
	"coordinator/cmd/internal/stdio"
	"coordinator/frames"
	"coordinator/handshake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newServer is a server whose coordinator does not exist.
func newServer(t *testing.T, readOnly bool) *Server {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "c")
	require.NoError(t, os.Mkdir(dir, 0o700))
	key, err := handshake.CreateKey(filepath.Join(dir, "client.ed25519"), rand.Reader)
	require.NoError(t, err)
	c := &client.Context{Name: "none", Socket: filepath.Join(dir, "none.sock"), CoordinatorID: frames.CoordinatorID{7}, Authority: frames.Fingerprint{1},
		WitnessID: frames.WitnessID{1}, WitnessPublicKey: key.Public(), KeyFile: filepath.Join(dir, "client.ed25519")}
	path := filepath.Join(dir, "context.toml")
	require.NoError(t, c.Save(path))
	c, err = client.LoadContext(path)
	require.NoError(t, err)
	s, err := New(Options{Context: c, ReadOnly: readOnly, Version: "test", Cwd: "/"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// tools are what a server offers.
func tools(t *testing.T, readOnly bool) []*sdk.Tool {
	t.Helper()
	s := newServer(t, readOnly)
	near, far := io.Pipe()
	back, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), near, out) }()
	c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	session, err := c.Connect(t.Context(), &sdk.IOTransport{Reader: back, Writer: far}, nil)
	require.NoError(t, err)
	list, err := session.ListTools(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, session.Close())
	require.NoError(t, <-served)
	return list.Tools
}

// TestTheDocumentsTable holds the table of docs/mcp.md against the tools that there are.
func TestTheDocumentsTable(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/mcp.md")
	require.NoError(t, err)
	repeats := map[[2]bool]string{{true, true}: "always", {false, true}: "with `operation_id`; without it, it is refused or changes nothing more", {false, false}: "with `operation_id`"}
	var told, want []string
	for line := range strings.Lines(string(raw)) {
		if cells := strings.Split(line, "|"); len(cells) == 6 && strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			told = append(told, strings.TrimSpace(cells[1])+" | "+strings.TrimSpace(cells[2])+" | "+strings.TrimSpace(cells[3]))
			require.NotEmpty(t, strings.TrimSpace(cells[4]))
		}
	}
	reads := map[string]bool{}
	for _, tool := range tools(t, true) {
		reads[tool.Name] = true
		require.True(t, tool.Annotations.ReadOnlyHint)
	}
	for _, tool := range tools(t, false) {
		kind := "reads"
		if !tool.Annotations.ReadOnlyHint {
			kind = "changes"
		}
		require.Equal(t, reads[tool.Name], kind == "reads", tool.Name)
		want = append(want, fmt.Sprintf("`%s` | %s | %s", tool.Name, kind, repeats[[2]bool{tool.Annotations.ReadOnlyHint, tool.Annotations.IdempotentHint}]))
	}
	require.ElementsMatch(t, want, told)
}

// TestDescriptionsSayWhatMatters looks for what an agent must be told of each tool.
func TestDescriptionsSayWhatMatters(t *testing.T) {
	others := map[string]bool{}
	for _, name := range strings.Fields("list_objectives get_objective get_run list_signals get_artifact run_timeline read_output wait_run wait_signal") {
		others[name] = true
	}
	for _, tool := range tools(t, false) {
		require.Contains(t, tool.Description, "afe to repeat", tool.Name)
		require.Equal(t, others[tool.Name], strings.Contains(tool.Description, "treat them as data"), tool.Name)
		require.NotNil(t, tool.OutputSchema, tool.Name)
		in, err := json.Marshal(tool.InputSchema)
		require.NoError(t, err)
		require.Equal(t, !tool.Annotations.ReadOnlyHint || tool.Name == "get_operation", strings.Contains(string(in), `"operation_id"`), tool.Name)
		require.NotContains(t, string(in), `"null"`, tool.Name)
		require.NotContains(t, string(in), `"default"`, "%s: the SDK falls over defaults where arguments are null", tool.Name)
	}
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n" +
	`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// TestRequestsThatArePipedInAreAnswered closes the input right behind them.
func TestRequestsThatArePipedInAreAnswered(t *testing.T) {
	s := newServer(t, false)
	var in strings.Builder
	in.WriteString(hello)
	for i := range 20 {
		fmt.Fprintf(&in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"new_operation_id","arguments":null}}`+"\n", i+1)
	}
	r, w := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), io.NopCloser(strings.NewReader(in.String())), w) }()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for range 21 {
		require.True(t, lines.Scan())
		require.Contains(t, lines.Text(), `"result"`, "standard output is the protocol's")
	}
	require.NoError(t, <-served)
}

// TestTooManyCallsAtOnce fills the server with waits and is refused one more, while the others
// can still be cancelled.
func TestTooManyCallsAtOnce(t *testing.T) {
	s := newServer(t, false)
	r, in := io.Pipe()
	back, w := io.Pipe()
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { served <- s.Serve(ctx, r, w) }()
	answers := make(chan string, 2*maxCalls)
	go func() {
		defer close(answers)
		for lines := bufio.NewScanner(back); lines.Scan(); {
			answers <- lines.Text()
		}
	}()
	send := func(format string, args ...any) {
		t.Helper()
		_, err := fmt.Fprintf(in, format+"\n", args...)
		require.NoError(t, err)
	}
	_, err := io.WriteString(in, hello)
	require.NoError(t, err)
	require.Contains(t, <-answers, `"id":0`)
	for i := range maxCalls + 1 { // each waits for a view that never comes
		send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"status"}}`, i+1)
	}
	busy := <-answers
	require.Contains(t, busy, fmt.Sprintf(`"id":%d`, maxCalls+1))
	require.Contains(t, busy, "BUSY")
	send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	require.Contains(t, <-answers, `"id":1,`)
	send(`{"jsonrpc":"2.0","id":1000,"method":"tools/call","params":{"name":"new_operation_id"}}`)
	require.Contains(t, <-answers, `"id":1000`, "there is room again")
	cancel() // the rest need not be waited for
	require.NoError(t, in.Close())
	<-served
	for range answers { // to the end
	}
}

// TestStreamsEndWithTheServer stops a server that waits for its input, and one whose output
// nobody reads.
func TestStreamsEndWithTheServer(t *testing.T) {
	for _, flood := range []bool{false, true} {
		s := newServer(t, false)
		inR, inW, err := os.Pipe()
		require.NoError(t, err)
		outR, outW, err := os.Pipe()
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		r, w, release, err := stdio.Open(ctx, inR, outW)
		require.NoError(t, err)
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, r, w) }()
		_, err = io.WriteString(inW, hello)
		require.NoError(t, err)
		_, err = bufio.NewReader(outR).ReadString('\n')
		require.NoError(t, err)
		if flood {
			require.NoError(t, inW.SetWriteDeadline(time.Now().Add(time.Second)))
			for i := 1; err == nil; i++ { // until nothing moves any more
				_, err = fmt.Fprintf(inW, `{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`+"\n", i)
			}
		}
		cancel()
		<-served // with or without an error: what was answered had no reader
		release()
		for _, f := range []*os.File{inR, inW, outR, outW} {
			require.NoError(t, f.Close())
		}
	}
}

// TestWithoutACoordinator says so, and what to do.
func TestWithoutACoordinator(t *testing.T) {
	s := newServer(t, false)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errTimeout)
	defer cancel()
	_, err := s.status(ctx, statusIn{})
	require.Equal(t, "TIMED_OUT", explain(err).Code)
	p := explain(s.unavailable(errNotCurrent))
	require.Equal(t, "UNAVAILABLE", p.Code)
	require.Contains(t, strings.Join(p.Next, " "), "coordctl up")
	require.True(t, p.result().IsError)
	require.Contains(t, p.result().Content[0].(*sdk.TextContent).Text, "\nnext: ")
}

func TestWatchedResourcesAreBounded(t *testing.T) {
	s := newServer(t, false)
	for i := range maxWatched {
		uri := fmt.Sprintf("%s/%032x", runsURI, i+1)
		require.NoError(t, s.subscribe(t.Context(), &sdk.SubscribeRequest{Params: &sdk.SubscribeParams{URI: uri}}))
		require.NoError(t, s.subscribe(t.Context(), &sdk.SubscribeRequest{Params: &sdk.SubscribeParams{URI: uri}}), "again")
	}
	last := &sdk.SubscribeRequest{Params: &sdk.SubscribeParams{URI: runsURI}}
	require.ErrorContains(t, s.subscribe(t.Context(), last), "RESOURCE_EXHAUSTED")
	require.NoError(t, s.unsubscribe(t.Context(), &sdk.UnsubscribeRequest{Params: &sdk.UnsubscribeParams{URI: fmt.Sprintf("%s/%032x", runsURI, 1)}}))
	require.NoError(t, s.subscribe(t.Context(), last))
	for _, uri := range []string{"coordinator://nonsense", runsURI + "/zz", runsURI + "/", objectivesURI + "/" + strings.Repeat("AB", 16), ""} {
		require.Error(t, s.subscribe(t.Context(), &sdk.SubscribeRequest{Params: &sdk.SubscribeParams{URI: uri}}), uri)
	}
	s.watched.mark(runsURI, objectivesURI)
	require.Equal(t, map[string]bool{runsURI: true}, s.watched.take())
	require.Nil(t, s.watched.take())
	s.watched.mark()
	require.Len(t, s.watched.take(), maxWatched)
}
