package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/frames"
)

const (
	up    = "\x1b[A"
	down  = "\x1b[B"
	enter = "\r"
	esc   = "\x1b"
)

// TestScreens is every tab of a busy coordinator on the smallest usual terminal.
func TestScreens(t *testing.T) {
	w := busyWorld(t)
	s := newScreen(t, 80, 24, colorprofile.ASCII, Options{Name: "local"})
	s.shows("starting")
	s.send(w.all()).shows("CURRENT").golden("overview")
	s.press("2").shows(" ack ").golden("signals")
	s.press("3").golden("objectives")
	s.press("4").shows("STUCK paused").golden("runs")
	s.press("5").shows("PENDING").golden("operations")
	s.press("6").shows("SEEN").golden("activity")
	s.press("?").shows("Keys").golden("help")
	s.press("x").shows("SEEN")
	s.press("\t").shows("OBJECT.")
	s.press("\x1b[Z").shows("SEEN")
	require.NotContains(t, s.raw.String(), "owned\x07", "a title reached the terminal as it was made")
	require.NotContains(t, s.raw.String(), "\u202e")
}

// TestFreshness says at the top whether to believe the screen, and keeps the rows.
func TestFreshness(t *testing.T) {
	w := busyWorld(t)
	s := newScreen(t, 80, 24, colorprofile.ASCII, Options{Name: "local"})
	s.send(w.all()).shows("CURRENT  everything up to event 26")
	tell := func(state client.ReplicaState) *screen {
		w.state = state
		w.model.Notice(&state, w.now)
		w.now = w.now.Add(12 * time.Second)
		return s.send(w.update())
	}
	since := w.now
	tell(client.ReplicaState{Phase: client.ReplicaStale, Reason: client.StaleDisconnected, Since: since, Gap: &client.Gap{Cause: errors.New("nobody listens"), Last: 26}}).
		shows("STALE 12s  nobody listens; shown as of event 26, what happened").golden("stale")
	s.press("6").shows("gap", "nobody listens")
	tell(client.ReplicaState{Phase: client.ReplicaStale, Reason: client.StaleGap, Since: since, Gap: &client.Gap{Reason: frames.GapQueueOverflow, Last: 26, Observed: 30}}).
		shows("QUEUE_OVERFLOW after event 26")
	healed := &client.Healed{Replayed: true, Last: 26}
	tell(client.ReplicaState{Phase: client.ReplicaStale, Reason: client.StaleBehind, Since: since, Healed: healed}).shows("BEHIND  shown as of event 26")
	tell(client.ReplicaState{Phase: client.ReplicaCurrent, Since: since, Healed: healed}).shows("CURRENT", "healed", "the log was replayed")
	tell(client.ReplicaState{Phase: client.ReplicaLostHistory, Since: since, Lost: &client.LostHistory{Cut: 26}}).shows("STALE", "HISTORY LOST")
	tell(client.ReplicaState{Phase: client.ReplicaRevoked, Since: since, Err: errors.New("this key was revoked")}).shows("ENDED", "this key was revoked")

	nothing := newScreen(t, 80, 24, colorprofile.ASCII, Options{Name: "local"})
	empty := newWorld(t)
	empty.state = client.ReplicaState{Gap: &client.Gap{Cause: errors.New("nobody listens")}}
	d := empty.model.Refresh(nil, empty.state, empty.now)
	u := takeUpdate(empty.model, d)
	u.view = nil
	nothing.send(u).shows("NO VIEW  Connecting: nobody listens; nothing is known yet", "no authority yet")
}

// TestPages shows all about a signal, its run with output and timeline, and the objective.
func TestPages(t *testing.T) {
	w := busyWorld(t)
	asked := make(chan frames.RunID, 8)
	answer := Details{AsOf: 26, Facts: 4, Removed: 3, Output: []string{"compiling…", "Overwrite \x1b[31mall?"},
		Timeline: []string{"4        run changed              run is Planned", "7        source fact admitted     fact 1 OPENED"}}
	s := newScreen(t, 80, 24, colorprofile.ASCII, Options{Name: "local", Details: func(_ context.Context, v *client.View, id frames.RunID) Details {
		require.NotNil(t, v)
		asked <- id
		return answer
	}})
	s.send(w.all()).shows("CURRENT")
	s.press(enter).shows("message").golden("signal_page")
	s.press(enter).shows("LAST OUTPUT", "compiling…").golden("run_page")
	require.Equal(t, id(frames.KindRun, 4), [16]byte(<-asked))
	s.press(enter).shows("open signals").golden("objective_page")
	s.press(esc).shows("LAST OUTPUT")
	w.now = w.now.Add(time.Second)
	w.run(4, 3, frames.RunFailed)
	s.send(w.update()).shows("Failed since 03:04:26 UTC, 0s")
	answer.OutputErr, answer.Output = "owner local: nobody listens", nil
	s.press("l").shows("nobody listens")
	for range 8 {
		answer.Timeline = append(answer.Timeline, "8        source fact admitted     a fact")
	}
	s.press("l").shows("lines more")
	s.press("G").until("the end", func(text string) bool { return !strings.Contains(text, "lines more") })
	s.press("g").shows("lines more")
	s.press("\x7f").shows("message") // backspace
	s.press("5", enter).shows("principal").golden("operation_page")
	s.press("6", enter).shows("LAST OUTPUT") // a binding stands for its run
	s.press(esc).shows("SEEN")
	s.press(down, down, down, enter).shows("REJECTED NOT_FOUND: no such process")
	w.records = map[frames.ObjectRef]frames.SnapshotRecord{}
	w.model.Notice(&client.Reread{View: w.at(), State: w.state}, w.now)
	s.send(w.update()).shows("is gone")
	s.press("1").shows("none")
}

// TestActions asks before it commands, shows the operation before and after, and sends the
// same one again when its answer was lost.
func TestActions(t *testing.T) {
	w := busyWorld(t)
	calls := make(chan Action, 8)
	outcomes := make(chan Outcome, 8)
	s := newScreen(t, 80, 24, colorprofile.ASCII, Options{Name: "local", Act: func(_ context.Context, a Action) Outcome {
		calls <- a
		return <-outcomes
	}})
	s.send(w.all()).shows("CURRENT")
	s.press("a").shows("Acknowledge signal 60010101?").golden("confirm")
	s.press("x").shows("y yes") // neither yes nor no
	s.press("n").shows("Nothing was sent.")
	require.Empty(t, calls)

	op := frames.OperationID{0xab, 0xcd, 15: 1}
	s.press("a").shows("y yes")
	s.press("y").shows("sent as operation abcd0000000000000000000000000001")
	require.Equal(t, Action{Verb: "acknowledge", Kind: frames.KindSignal, ID: id(frames.KindSignal, 1), Operation: op}, <-calls)
	require.Equal(t, []frames.OperationID{op}, s.m.unsettled(), "it is under way")
	outcomes <- Outcome{Lines: []string{"no answer to operation abcd: the connection ended", "the command may have run", "next: find out: coordctl op get abcd"}, Failed: true, Unsettled: true}
	s.shows("the command may have run", "t sends the same command again").golden("unsettled")
	require.Equal(t, []frames.OperationID{op}, s.m.unsettled())
	s.press("t")
	again := <-calls
	require.True(t, again.Again)
	require.Equal(t, op, again.Operation)
	outcomes <- Outcome{Lines: []string{"acknowledge: SUCCEEDED, operation abcd0000000000000000000000000001"}}
	s.shows("acknowledge: SUCCEEDED")
	require.Empty(t, s.m.unsettled())
	s.press("t").shows("no command whose answer was lost")

	s.press("c").shows("Only signals can be acknowledged", "only runs cancelled")
	s.press("4", "c").shows("Cancel run 20040404?", "This cannot be")
	s.press("y")
	require.Equal(t, "cancel", (<-calls).Verb)
	outcomes <- Outcome{Lines: []string{"cancel: PENDING"}}
	s.shows("cancel: PENDING")
	s.press("r").shows("This run is Running: there is nothing to resume")
	s.press("G", "p").shows("This run is Completed: there is nothing to pause")
	s.press(esc).until("the message is gone", func(text string) bool { return !strings.Contains(text, "nothing to pause") })
}

// TestFilterAndMoves filters, and keeps the cursor on its row whatever comes above it.
func TestFilterAndMoves(t *testing.T) {
	w := newWorld(t)
	w.objective(1, "many", frames.ObjectiveActive)
	for n := range 60 {
		w.run(n, 1, frames.RunRunning)
	}
	s := newScreen(t, 80, 24, colorprofile.ASCII, Options{Name: "local"})
	s.send(w.all()).shows("4 Runs 60")
	s.press("4").shows(">20000000")
	s.press("\x1b[6~").shows(">20131313") // a page down: 20 lines of rows and their heading
	s.shows("OWNER")
	s.press("G").shows(">203b3b3b", "OWNER")
	s.press(up, "k").shows(">20393939")
	w.now = w.now.Add(time.Second)
	w.run(2, 1, frames.RunPaused)
	s.send(w.update()).shows(">20393939")
	s.press("g").shows(">20020202 Paused")
	s.press("/", "2", "0", "1", "0", "1", "0").shows("/201010_")
	s.press("\x7f").shows("/20101_")
	s.press(enter).shows("filter: 20101", ">20101010")
	s.press("/", "z", "z").shows("none that holds 20101zz")
	s.press(esc).shows(">20101010")
	s.press("g").shows(">20020202 Paused")
	s.press("j", down).shows(">20010101")
}

// TestSizes shows on any window what there is room for.
func TestSizes(t *testing.T) {
	w := busyWorld(t)
	s := newScreen(t, 80, 24, colorprofile.ASCII, Options{Name: "local"})
	s.send(w.all()).shows("CURRENT")
	resize := func(width, height int) {
		require.NoError(t, pty.Setsize(s.tty, &pty.Winsize{Rows: uint16(height), Cols: uint16(width)}))
		s.emu.Resize(width, height)
		s.send(tea.WindowSizeMsg{Width: width, Height: height}) // SIGWINCH goes to a session's own terminal
	}
	resize(50, 12)
	s.shows("event 26").golden("small")
	resize(30, 5)
	s.shows("window too small: 30x5")
	resize(140, 30)
	s.shows("Overwrite �[31mall�[0m? [y/N]  (Hostile �[2J�]0;owned�� title)").golden("wide")
	for width := 1; width < 90; width += 7 {
		for height := 1; height < 30; height += 4 {
			m := newModel(t.Context(), &Options{Name: "local"})
			m.data.take(w.all())
			m.width, m.height = width, height
			lines := m.lines()
			require.LessOrEqual(t, len(lines), max(height, 3), "%dx%d", width, height)
		}
	}
}

// TestColours says nothing by colour alone, and uses none where that is not wanted.
func TestColours(t *testing.T) {
	w := busyWorld(t)
	colour := newScreen(t, 80, 24, colorprofile.TrueColor, Options{Name: "local"})
	colour.send(w.all()).shows("CURRENT")
	plain := newScreen(t, 80, 24, colorprofile.ASCII, Options{Name: "local"})
	plain.send(w.all()).shows("CURRENT")
	plain.until("the same", func(text string) bool { return text == colour.text() })
	require.Contains(t, colour.raw.String(), "\x1b[32m")
	require.NotContains(t, plain.raw.String(), "\x1b[32m")
	require.NotRegexp(t, `\x1b\[[0-9;]*3[0-7]m`, plain.raw.String())
}

// TestAPanicRestoresTheTerminal wherever it comes from.
func TestAPanicRestoresTheTerminal(t *testing.T) {
	for name, act := range map[string]func(context.Context, Action) Outcome{
		"beside the screen": func(context.Context, Action) Outcome { panic("a bug") },
		"in the screen":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			w := busyWorld(t)
			s := open(t, 80, 24)
			before := s.termios()
			s.start(colorprofile.ASCII, Options{Name: "local", Act: act})
			s.send(w.all()).shows("CURRENT")
			require.NotEqual(t, before, s.termios())
			if act != nil {
				s.press("a", "y")
			} else {
				s.send(panicked{fmt.Errorf("a bug")})
			}
			require.ErrorIs(t, <-s.done, tea.ErrProgramPanic)
			require.Equal(t, before, s.termios())
			s.until("the screen before", func(string) bool { return s.emu.Left() })
		})
	}
}

// TestTheDocumentShowsTheScreen as it is.
func TestTheDocumentShowsTheScreen(t *testing.T) {
	document, err := os.ReadFile("../../../docs/top.md")
	require.NoError(t, err)
	overview, err := os.ReadFile("testdata/overview.txt")
	require.NoError(t, err)
	require.Contains(t, string(document), "```text\n"+string(overview)+"```\n")
}
