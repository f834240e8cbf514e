package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"coordinator/client"
	"coordinator/cmd/internal/output"
	"coordinator/frames"
)

// format is an output format by its name.
func format(t *testing.T, name string) output.Format {
	f, err := output.Parse(name)
	require.NoError(t, err)
	return f
}

// TestYAMLOfEveryFamilyIsItsJSON, of lists and of single records.
func TestYAMLOfEveryFamilyIsItsJSON(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	f.listen()
	commands := [][]string{{"status"}, {"ping"}, {"signals", "--all"}, {"describe", "run", "02abcd"}, {"context", "show"}}
	for _, k := range kindNames {
		commands = append(commands, []string{"get", k.names[0]})
	}
	for _, args := range commands {
		js, ym := f.cli(append(args, "-o", "json")...), f.cli(append(args, "--output", "yaml")...)
		require.Equal(t, 0, ym.code, "%v: %s", args, ym.errout)
		var want, got any
		require.NoError(t, json.Unmarshal([]byte(js.out), &want))
		require.NoError(t, yaml.Unmarshal([]byte(ym.out), &got), ym.out)
		if args[0] == "ping" { // which takes another time each
			require.IsType(t, want, got)
			continue
		}
		again, err := json.Marshal(got)
		require.NoError(t, err)
		require.JSONEq(t, js.out, string(again), "%v", args)
	}
}

func TestWideTables(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	f.listen()
	var all strings.Builder
	for _, k := range kindNames {
		table, wide := f.cli("get", k.names[0]), f.cli("get", k.names[0], "-o", "wide")
		require.Equal(t, 0, wide.code, wide.errout)
		require.Equal(t, strings.Count(table.out, "\n"), strings.Count(wide.out, "\n"))
		for _, c := range wideColumns[k.kind] {
			require.Contains(t, wide.out, c.name)
			require.NotContains(t, strings.Fields(strings.SplitN(table.out, "\n", 2)[0]), c.name)
		}
		all.WriteString(wide.out + "\n")
	}
	all.WriteString(f.cli("signals", "--all", "-o", "wide").out)
	require.NotContains(t, all.String(), "\a")
	golden(t, "wide", all.String())
}

func TestTemplatesPickFromCommands(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	f.other = answer(frames.OperationResult{State: frames.OperationSucceeded, Sequence: 6})
	f.listen()
	id := "01abcd00000000000000000000000001"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "objective", id, "-o", "jsonpath={.payload.state}"}, "Active\n"},
		{[]string{"get", "objective", "-o", `jsonpath={range .items[*]}{.id}{"="}{.payload.state}{"\n"}{end}`}, id + "=Active\n" + strings.TrimSuffix(id, "1") + "2=Completed\n"},
		{[]string{"get", "objective", "-o", "jsonpath={.items[0].payload.document.title}"}, "First \ufffd work\n"},
		{[]string{"get", "run", "-o", "jsonpath={.items[?(@.payload.state=='Failed')].payload.attempt}"}, "2\n"},
		{[]string{"describe", "objective", id, "-o", "jsonpath={.related[*].id}"}, ""},
		{[]string{"status", "-o", "jsonpath={.authority_epoch}"}, "7\n"},
		{[]string{"create", "objective", "--title", "x", "--id", id, "-o", "jsonpath={.objective_id}"}, id + "\n"},
		{[]string{"op", "get", id, "-o", "jsonpath={.completed_event_sequence}"}, "6\n"},
		{[]string{"signals", "--all", "-o", "jsonpath={.items[*].kind}"}, "EVIDENCE_GAP\n"},
	} {
		r := f.cli(tt.args...)
		require.Equal(t, 0, r.code, "%v: %s", tt.args, r.errout)
		require.Equal(t, tt.want, r.out, "%v", tt.args)
	}
}

// TestWrongFormats are usage errors, before anything is asked of a coordinator.
func TestWrongFormats(t *testing.T) {
	f := newFake(t)
	r := f.cli("get", "objective", "-o", "xml")
	require.Equal(t, exitUsage, r.code)
	require.Equal(t, "coordctl: --output is \"xml\"; it is text, wide, json, yaml or jsonpath=TEMPLATE\n", r.errout)
	r = f.cli("status", "--output", "jsonpath={.items[*}")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.errout, "wrong at character 10")
	require.Contains(t, r.errout, "\n    {.items[*}\n             ^\n")
	require.Equal(t, exitUsage, f.cli("top", "-o", "yaml").code)
	require.Contains(t, cli("__complete", "get", "run", "-o", "").out, "jsonpath=")
}

// TestATemplateDoesNotHideGaps of what it is filled in for.
func TestATemplateDoesNotHideGaps(t *testing.T) {
	for _, tt := range []struct{ format, gap string }{{"jsonpath={.event_kind}", ""}, {"yaml", "type: GAP"}, {"json", `"type":"GAP"`}} {
		var out, errout strings.Builder
		w := &watcher{a: &app{stdout: &out, stderr: &errout, output: format(t, tt.format)}}
		for _, u := range told(t)[:4] {
			require.NoError(t, w.show(u))
		}
		require.NoError(t, w.show(&client.Gap{Reason: frames.GapRetention, Last: 10}))
		if tt.gap == "" {
			require.Equal(t, "OBJECTIVE_CHANGED\nSOURCE_FACT_ADMITTED\nSOURCE_GAP\nOBJECT_REMOVED\n", out.String())
			require.Equal(t, "-- gap: RETENTION after event 10; healing\n", errout.String())
			continue
		}
		require.Contains(t, out.String(), tt.gap)
		require.Empty(t, errout.String())
	}
}
