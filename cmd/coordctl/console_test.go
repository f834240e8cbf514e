package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A consoled is a `coordctl console` and the browser that it has let in.
type consoled struct {
	*begun
	t      *testing.T
	base   string
	cookie *http.Cookie
}

// console starts one.
func (u *upped) console(args ...string) *consoled {
	u.t.Helper()
	c := &consoled{begun: u.begin(append([]string{"console", "--no-browser"}, args...)...), t: u.t}
	eventually(u.t, "the address is printed", func() bool { return strings.Contains(c.out.String(), "\n") })
	url, _, _ := strings.Cut(c.out.String(), "\n")
	if strings.HasPrefix(url, "{") {
		var first struct{ URL string }
		require.NoError(u.t, json.Unmarshal([]byte(url), &first))
		url = first.URL
	}
	base, _, ok := strings.Cut(url, "/?token=")
	require.True(u.t, ok, url)
	c.base = base
	once := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	a, err := once.Get(url)
	require.NoError(u.t, err)
	a.Body.Close()
	require.Len(u.t, a.Cookies(), 1)
	c.cookie = a.Cookies()[0]
	u.t.Cleanup(once.CloseIdleConnections)
	u.t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return c
}

// call makes a request of the page; a body makes it a POST.
func (c *consoled) call(path string, body, out any) int {
	c.t.Helper()
	method, raw := "GET", []byte(nil)
	if body != nil {
		var err error
		raw, err = json.Marshal(body)
		require.NoError(c.t, err)
		method = "POST"
	}
	r, err := http.NewRequest(method, c.base+path, bytes.NewReader(raw))
	require.NoError(c.t, err)
	r.AddCookie(c.cookie)
	r.Header.Set("Origin", c.base)
	r.Header.Set("Content-Type", "application/json")
	a, err := http.DefaultClient.Do(r)
	require.NoError(c.t, err)
	defer a.Body.Close()
	answer, err := io.ReadAll(a.Body)
	require.NoError(c.t, err)
	require.NoError(c.t, json.Unmarshal(answer, out), string(answer))
	return a.StatusCode
}

// interrupt is Ctrl-C.
func (c *consoled) interrupt() {
	require.NoError(c.t, c.cmd.Process.Signal(os.Interrupt))
	require.Zero(c.t, c.code(c.t), c.err.String())
	require.Empty(c.t, c.err.String())
}

type consoleFinding struct{ What, Verdict, Detail string }

type consoleOutput struct {
	Offset, Digest, Detail string
	Next                   string `json:"next_offset"`
	Bytes                  []byte
	End, Live              bool
	Ranges                 []struct{ Offset, Length, Verdict string }
}

type consoleRun struct {
	Run struct {
		State string
		Exit  *struct {
			Known  bool
			Status int
		}
	}
	Outputs []struct {
		Stream string
		Live   bool
	}
	Signals []struct {
		ID, State, Revision string
		Actions             []string
	}
	Bindings []struct {
		OwnerName string `json:"owner_name"`
	}
	Evidence   []struct{ Seal string }
	Operations []struct{ State string }
}

type consoleOutcome struct {
	Operation string `json:"operation_id"`
	Outcome   string
}

// TestTheConsoleOfRealRuns looks at runs of real processes, at what they left, and acts.
func TestTheConsoleOfRealRuns(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	c := u.console()
	failed := u.ctl("run", "--", "sh", "-c", "for i in $(seq 20000); do echo line $i; done; exit 3")
	require.Equal(t, 3, failed.code, failed.errout)
	id := u.onlyRun()
	path := "/api/run/" + id

	var run consoleRun
	eventually(t, "the run has failed on the page", func() bool {
		return c.call(path, nil, &run) == http.StatusOK && run.Run.Exit != nil && len(run.Signals) == 1 && len(run.Evidence) == 1
	})
	require.Equal(t, "Failed", run.Run.State)
	require.Equal(t, 3, run.Run.Exit.Status)
	require.Len(t, run.Outputs, 1)
	require.Equal(t, "local", run.Bindings[0].OwnerName)

	var line struct {
		Events  []struct{ Kind, Text string }
		Streams []struct {
			Closed, Sealed bool
			Findings       []consoleFinding
		}
	}
	require.Equal(t, http.StatusOK, c.call(path+"/timeline", nil, &line))
	var texts []string
	for _, e := range line.Events {
		texts = append(texts, e.Text)
	}
	require.Contains(t, strings.Join(texts, "\n"), "run is Failed, exit status 3")
	require.Len(t, line.Streams, 1)
	require.True(t, line.Streams[0].Closed && line.Streams[0].Sealed)
	require.NotEmpty(t, line.Streams[0].Findings)
	for _, f := range line.Streams[0].Findings {
		require.Equal(t, "agrees", f.Verdict, "%+v", f)
	}

	stream := path + "/output/" + run.Outputs[0].Stream
	var all []byte
	for end := false; !end; {
		var piece consoleOutput
		require.Equal(t, http.StatusOK, c.call(fmt.Sprintf("%s?offset=%d&limit=50000", stream, len(all)), nil, &piece))
		require.Equal(t, "agrees", piece.Digest, "%+v", piece)
		require.NotEmpty(t, piece.Ranges)
		require.LessOrEqual(t, len(piece.Bytes), 50000)
		require.False(t, piece.Live)
		all = append(all, piece.Bytes...)
		end = piece.End
		require.Equal(t, fmt.Sprint(len(all)), piece.Next)
	}
	require.Equal(t, failed.out, string(all))
	var beyond consoleOutput
	require.Equal(t, http.StatusOK, c.call(stream+"?offset=99999999", nil, &beyond))
	require.True(t, beyond.End)
	require.Empty(t, beyond.Bytes)
	for _, bad := range []string{"?offset=-1", "?limit=0", "?limit=65537", "?offset=99999999999999999999"} {
		var answer any
		require.Equal(t, http.StatusBadRequest, c.call(stream+bad, nil, &answer), bad)
	}

	var verified struct {
		Verified bool
		Bytes    string
		Findings []consoleFinding
	}
	require.Equal(t, http.StatusOK, c.call(stream+"/verify", struct{}{}, &verified))
	require.True(t, verified.Verified, "%+v", verified)
	require.Equal(t, fmt.Sprint(len(all)), verified.Bytes)
	u.spoil(all)
	require.Equal(t, http.StatusOK, c.call(stream+"/verify", struct{}{}, &verified))
	require.False(t, verified.Verified)
	var spoilt consoleOutput
	require.Equal(t, http.StatusOK, c.call(stream, nil, &spoilt))
	require.Equal(t, "DIFFERS", spoilt.Digest)
	require.Contains(t, fmt.Sprint(verified.Findings), "DIFFER")

	sig := run.Signals[0]
	require.Contains(t, sig.Actions, "acknowledge")
	var ack consoleOutcome
	require.Equal(t, http.StatusOK, c.call("/api/action", map[string]string{"action": "acknowledge", "id": sig.ID, "revision": sig.Revision, "note": "seen"}, &ack))
	require.Equal(t, "COMMITTED", ack.Outcome)
	eventually(t, "it is acknowledged on the page", func() bool {
		return c.call(path, nil, &run) == http.StatusOK && run.Signals[0].State == "Acknowledged"
	})
	var op struct{ Operation struct{ State string } }
	require.Equal(t, http.StatusOK, c.call("/api/operation/"+ack.Operation, nil, &op))
	require.Equal(t, "SUCCEEDED", op.Operation.State)
	require.Equal(t, http.StatusOK, c.call("/api/operation/"+strings.Repeat("ab", 16), nil, &op))
	require.Equal(t, "UNKNOWN", op.Operation.State)

	u.cancelled(c)
	c.interrupt()
}

// spoil changes one byte of the output that the owner has stored.
func (u *upped) spoil(content []byte) {
	found := false
	require.NoError(u.t, filepath.Walk(filepath.Join(u.state, "owner", "output"), func(path string, i os.FileInfo, err error) error {
		if err != nil || !i.Mode().IsRegular() || i.Size() != int64(len(content)) {
			return err
		}
		found = true
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt([]byte{content[10] + 1}, 10)
		return err
	}))
	require.True(u.t, found, "no file of %d bytes", len(content))
}

// cancelled looks at a run that goes on, and cancels it.
func (u *upped) cancelled(c *consoled) {
	t := u.t
	ids := u.detached("sh", "-c", "echo begun; exec sleep 1000")
	path := "/api/run/" + ids.Run
	var run consoleRun
	eventually(t, "it runs on the page", func() bool {
		return c.call(path, nil, &run) == http.StatusOK && run.Run.State == "Running" && len(run.Outputs) == 1
	})
	require.True(t, run.Outputs[0].Live)
	var piece consoleOutput
	eventually(t, "its output is there, and its digest", func() bool {
		return c.call(path+"/output/"+run.Outputs[0].Stream, nil, &piece) == http.StatusOK && piece.Digest == "agrees" && string(piece.Bytes) == "begun\r\n"
	})
	require.True(t, piece.Live && piece.End)
	var out consoleOutcome
	want := map[string]string{"action": "cancel", "id": ids.Run, "operation_id": strings.Repeat("0d", 16)}
	require.Equal(t, http.StatusOK, c.call("/api/action", want, &out))
	require.Contains(t, []string{"PENDING", "COMMITTED"}, out.Outcome)
	eventually(t, "the same operation has committed", func() bool {
		return c.call("/api/action", want, &out) == http.StatusOK && out.Outcome == "COMMITTED"
	})
	eventually(t, "it has ended on the page", func() bool {
		return c.call(path, nil, &run) == http.StatusOK && run.Run.State == "Cancelled" && !run.Outputs[0].Live
	})
}

// TestTheConsoleOutlivesItsCoordinator kills the coordinator under a page.
func TestTheConsoleOutlivesItsCoordinator(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	c := u.console("-o", "json")
	r, err := http.NewRequest("GET", c.base+"/api/live", nil)
	require.NoError(t, err)
	r.AddCookie(c.cookie)
	a, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer a.Body.Close()
	lines := bufio.NewScanner(a.Body)
	until := func(what string, ok func(string) bool) {
		t.Helper()
		for lines.Scan() {
			if ok(lines.Text()) {
				return
			}
		}
		t.Fatalf("the stream has ended before %s", what)
	}
	until("the view is current", func(s string) bool { return strings.Contains(s, `"stale":false`) })
	_, coordinator := u.pids()
	require.NoError(t, syscall.Kill(coordinator, syscall.SIGKILL))
	until("it is stale", func(s string) bool { return strings.Contains(s, `"stale":true`) })
	until("it is current again", func(s string) bool { return strings.Contains(s, `"stale":false`) })
	c.interrupt()
	for lines.Scan() { // to its end
	}
}

func TestConsoleUsage(t *testing.T) {
	f := newFake(t)
	for _, args := range [][]string{
		{"console", "--listen", "0.0.0.0:8080"}, {"console", "--listen", ":8080"}, {"console", "--listen", "nonsense"},
		{"console", "--metrics", "http://192.0.2.1:9464"}, {"console", "more"},
	} {
		r := f.cli(args...)
		require.Equal(t, exitUsage, r.code, args)
		require.Empty(t, r.out)
	}
	require.Contains(t, f.cli("console", "--listen", "0.0.0.0:8080").errout, "ssh -L 8080:127.0.0.1:8080")
}

// TestTheBrowserIsGivenTheTokenInAFile since everybody reads command lines.
func TestTheBrowserIsGivenTheTokenInAFile(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	const url = "http://127.0.0.1:1/?token=s3cret"
	script := "#!/bin/sh\nstat -c %a \"$1\" > " + bin + "/mode.new && cp \"$1\" " + bin + "/page && echo \"$@\" > " + bin + "/args && mv " + bin + "/mode.new " + bin + "/mode\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "xdg-open"), []byte(script), 0o700))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("WAYLAND_DISPLAY", "")
	t.Setenv("DISPLAY", "")
	clean, err := openBrowser(url, dir)
	require.NoError(t, err)
	clean()
	require.NoFileExists(t, filepath.Join(bin, "mode"), "there is no desktop")

	t.Setenv("DISPLAY", ":0")
	clean, err = openBrowser(url, dir)
	require.NoError(t, err)
	mode := filepath.Join(bin, "mode")
	eventually(t, "the browser is opened", func() bool { _, err := os.Stat(mode); return err == nil })
	raw, err := os.ReadFile(mode)
	require.NoError(t, err)
	require.Equal(t, "600\n", string(raw))
	args, err := os.ReadFile(filepath.Join(bin, "args"))
	require.NoError(t, err)
	require.NotContains(t, string(args), "s3cret")
	page, err := os.ReadFile(filepath.Join(bin, "page"))
	require.NoError(t, err)
	require.Contains(t, string(page), url)
	clean()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
