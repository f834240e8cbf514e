package top

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"coordinator/client"
	"coordinator/cmd/internal/overview"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/vterm"
)

// patience bounds every wait of a test.
const patience = 10 * time.Second

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// A world is records that a coordinator holds, and the overview of them.
type world struct {
	t       testing.TB
	records map[frames.ObjectRef]frames.SnapshotRecord
	seq     frames.EventSequence
	model   *overview.Model
	state   client.ReplicaState
	view    *client.View
	now     time.Time
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, records: map[frames.ObjectRef]frames.SnapshotRecord{}, now: begin, state: client.ReplicaState{Phase: client.ReplicaCurrent, Since: begin}}
	w.model = overview.New(overview.Options{Owners: map[frames.Fingerprint]string{{9}: "local"}})
	w.model.Notice(&client.Reread{View: w.at(), State: w.state}, w.now)
	w.model.Refresh(w.at(), w.state, w.now)
	return w
}

func (w *world) at() *client.View {
	refs := slices.SortedFunc(maps.Keys(w.records), frames.ObjectRef.Compare)
	v, err := client.NewView(frames.AuthorityGuard{CoordinatorID: frames.CoordinatorID{7}, Epoch: 3, Activation: 4}, frames.EventCut(w.seq), func(yield func(frames.SnapshotRecord) bool) {
		for _, ref := range refs {
			if !yield(w.records[ref]) {
				return
			}
		}
	}, w.view)
	require.NoError(w.t, err)
	v.Scope, v.Current = frames.AllScopes, w.state.Phase == client.ReplicaCurrent
	w.view = v
	return v
}

// update brings the model up to date.
func (w *world) update() *update {
	return takeUpdate(w.model, w.model.Refresh(w.at(), w.state, w.now))
}

// all is an update that holds everything, for a screen that begins.
func (w *world) all() *update {
	d := w.model.Refresh(w.at(), w.state, w.now)
	d.Signals, d.Objectives, d.Runs, d.Operations = w.model.Signals(0), w.model.Objectives(0), w.model.Runs(0), w.model.Operations(0)
	d.Activity = w.model.Activity()
	return takeUpdate(w.model, d)
}

func (w *world) set(kind frames.ObjectKind, event frames.EventKind, id [16]byte, p codec.Message) {
	ref := frames.ObjectRef{Kind: kind, ID: id}
	old := w.at().Get(kind, id)
	r, err := frames.NewRecord(ref, w.records[ref].Revision+1, p)
	require.NoError(w.t, err)
	w.records[ref] = r
	w.seq++
	image, err := codec.EncodeImage(nil, &r)
	require.NoError(w.t, err)
	w.model.Notice(&client.Change{Old: old, New: w.at().Get(kind, id), Event: &client.Event{Sequence: w.seq, ID: frames.EventID{1}, Kind: event, Object: ref,
		Revision: r.Revision, Schema: 1, Payload: image}}, w.now)
}

func id(kind frames.ObjectKind, n int) [16]byte {
	return [16]byte{byte(kind)<<4 | byte(n>>8), byte(n), byte(n), byte(n), 15: 1}
}

func (w *world) objective(n int, title string, state frames.ObjectiveState) {
	document, err := json.Marshal(map[string]string{"title": title})
	require.NoError(w.t, err)
	w.set(frames.KindObjective, frames.EventObjectiveChanged, id(frames.KindObjective, n), &frames.Objective{DocumentSchema: 1, Document: document, State: state})
}

func (w *world) run(n, objective int, state frames.RunState) {
	r := &frames.Run{ObjectiveID: id(frames.KindObjective, objective), Attempt: 1, State: state}
	if state == frames.RunFailed {
		r.Outcome = []byte{1, 0, 0, 0, 3}
	}
	w.set(frames.KindRun, frames.EventRunChanged, id(frames.KindRun, n), r)
	if state == frames.RunPlanned {
		return
	}
	w.set(frames.KindWorkSession, frames.EventWorkSessionChanged, id(frames.KindWorkSession, n), &frames.WorkSession{RunID: id(frames.KindRun, n)})
	w.set(frames.KindBinding, frames.EventBindingOpened, id(frames.KindBinding, n), &frames.Binding{Binding: frames.TerminalBindingRef{
		BindingID: id(frames.KindBinding, n), WorkSessionID: id(frames.KindWorkSession, n), Owner: frames.Fingerprint{9}, OwnerIncarnation: frames.IncarnationID{8}}})
}

func (w *world) signal(n, session int, kind frames.SignalKind, state frames.SignalState, message string) {
	w.set(frames.KindSignal, frames.EventSignalRaised, id(frames.KindSignal, n), &frames.Signal{WorkSessionID: id(frames.KindWorkSession, session), Kind: kind, State: state, Message: message})
}

func (w *world) operation(n int, r frames.OperationResult) {
	w.set(frames.KindOperation, frames.EventOperationChanged, id(frames.KindOperation, n), &frames.Operation{Principal: frames.KeyID{1}, Result: r})
}

// busyWorld has one of each thing that a screen shows.
func busyWorld(t testing.TB) *world {
	w := newWorld(t)
	w.objective(1, "Nightly build", frames.ObjectiveActive)
	w.objective(2, "日本語のタイトル 👩\u200d💻 wide", frames.ObjectiveActive)
	w.objective(3, "Hostile \x1b[2J\x1b]0;owned\x07\u202e title", frames.ObjectiveActive)
	w.objective(4, "Done long ago", frames.ObjectiveCompleted)
	w.run(1, 1, frames.RunRunning)
	w.run(2, 1, frames.RunFailed)
	w.run(3, 2, frames.RunPaused)
	w.run(4, 3, frames.RunRunning)
	w.run(5, 4, frames.RunCompleted)
	w.run(6, 2, frames.RunPlanned)
	w.signal(1, 4, frames.SignalExecutionBlocked, frames.SignalOpen, "Overwrite \x1b[31mall\x1b[0m? [y/N]")
	w.signal(2, 2, frames.SignalExecutionFailed, frames.SignalOpen, "exit status 3")
	w.signal(3, 2, frames.SignalEvidenceGap, frames.SignalAcknowledged, "output was lost")
	w.operation(1, frames.OperationResult{State: frames.OperationPending, Epoch: 3, Sequence: 12})
	w.operation(2, frames.OperationResult{State: frames.OperationIndeterminate})
	w.operation(3, frames.OperationResult{State: frames.OperationRejected, Sequence: 14, Code: frames.CodeNotFound, Message: "no such process"})
	w.now = w.now.Add(20 * time.Second)
	return w
}

// A screen is a model on a real terminal, whose other end an emulator draws.
type screen struct {
	t           testing.TB
	emu         *vterm.Emulator
	master, tty *os.File
	program     *tea.Program
	m           *model
	cancel      context.CancelFunc
	done        chan error
	raw         *recorder
}

// A recorder keeps what is written to the terminal.
type recorder struct {
	mu  sync.Mutex
	b   strings.Builder
	emu io.Writer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.b.Write(p)
	r.mu.Unlock()
	return r.emu.Write(p)
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// open makes a terminal of a size, and an emulator that shows what is written to it.
func open(t testing.TB, width, height int) *screen {
	master, tty, err := pty.Open()
	require.NoError(t, err)
	require.NoError(t, pty.Setsize(tty, &pty.Winsize{Rows: uint16(height), Cols: uint16(width)}))
	s := &screen{t: t, emu: vterm.New(width, height), master: master, tty: tty, done: make(chan error, 1)}
	s.raw = &recorder{emu: s.emu}
	var both sync.WaitGroup
	both.Go(func() { io.Copy(s.raw, master) }) //nolint:errcheck // it ends with the terminal
	both.Go(func() { io.Copy(master, s.emu) }) //nolint:errcheck // what a terminal answers to questions
	t.Cleanup(func() {
		tty.Close()
		master.Close()
		s.emu.Close()
		both.Wait()
	})
	return s
}

func newScreen(t testing.TB, width, height int, profile colorprofile.Profile, opts Options) *screen {
	s := open(t, width, height)
	s.start(profile, opts)
	return s
}

// start starts the program on the terminal.
func (s *screen) start(profile colorprofile.Profile, opts Options) {
	if opts.NewOperation == nil {
		opts.NewOperation = func() (frames.OperationID, error) { return frames.OperationID{0xab, 0xcd, 15: 1}, nil }
	}
	if opts.Details == nil {
		opts.Details = func(context.Context, *client.View, frames.RunID) Details { return Details{} }
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.m = cancel, newModel(ctx, &opts)
	in, err := newInput(ctx, s.tty)
	require.NoError(s.t, err)
	s.program = tea.NewProgram(s.m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(s.tty), tea.WithColorProfile(profile),
		tea.WithEnvironment([]string{"TERM=xterm-256color"}), tea.WithoutSignalHandler())
	go func() {
		_, err := s.program.Run()
		cancel()
		in.end()
		s.done <- err
		close(s.done)
	}()
	s.t.Cleanup(func() {
		cancel()
		for range s.done {
		}
		s.m.busy.Wait()
	})
}

// termios is how the terminal is set.
func (s *screen) termios() unix.Termios {
	t, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	require.NoError(s.t, err)
	return *t
}

func (s *screen) send(msg tea.Msg) *screen { s.program.Send(msg); return s }

// press types keys.
func (s *screen) press(keys ...string) *screen {
	for _, k := range keys {
		_, err := io.WriteString(s.master, k)
		require.NoError(s.t, err)
	}
	return s
}

// text is what the terminal shows.
func (s *screen) text() string {
	lines := strings.Split(strings.ReplaceAll(s.emu.String(), "\r", ""), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// shows waits until the terminal shows what.
func (s *screen) shows(what ...string) *screen {
	s.t.Helper()
	for _, w := range what {
		s.until(w, func(text string) bool { return strings.Contains(text, w) })
	}
	return s
}

func (s *screen) until(what string, ok func(string) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !ok(s.text()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%q is not shown in\n%s", what, s.text())
		}
	}
}

// golden holds the terminal against testdata, once it shows that; UPDATE_GOLDEN writes it.
func (s *screen) golden(name string) *screen {
	s.t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		time.Sleep(200 * time.Millisecond)
		require.NoError(s.t, os.MkdirAll("testdata", 0o755))
		require.NoError(s.t, os.WriteFile(path, []byte(s.text()), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(s.t, err)
	for deadline := time.Now().Add(5 * time.Second); s.text() != string(want) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	require.Equal(s.t, string(want), s.text())
	return s
}
