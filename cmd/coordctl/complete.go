package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"coordinator/client"
	"coordinator/cmd/internal/overview"
	"coordinator/cmd/internal/term"
	"coordinator/frames"
)

// completeWithin bounds how long somebody who pressed a key waits for a coordinator. Tests on a busy
// machine wait longer.
var completeWithin = 1500 * time.Millisecond

const (
	// maxCompletions is how many there are at most: nobody reads more.
	maxCompletions = 100
	// maxDescription bounds what is said of each, in characters.
	maxDescription = 60
)

const (
	noFiles = cobra.ShellCompDirectiveNoFileComp
	ordered = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
)

// takeFiles are the commands whose arguments are files, or a command with files.
var takeFiles = []string{"context add", "snapshot save", "snapshot verify", "snapshot diff", "run"}

// A completer gives what a word can be completed to.
type completer = cobra.CompletionFunc

// completions wires what is completed on the command lines below root, in one place: ids of what is
// there now, and the words that flags take. What it does not know of is no file.
func (a *app) completions(root *cobra.Command) {
	args := map[string]completer{
		"update objective": a.completeIDs(frames.KindObjective, "Active"), "complete objective": a.completeIDs(frames.KindObjective, "Active"),
		"cancel objective": a.completeIDs(frames.KindObjective, "Active"), "archive objective": a.completeIDs(frames.KindObjective, "Completed", "Cancelled"),
		"logs": a.completeIDs(frames.KindRun), "evidence verify": a.completeIDs(frames.KindRun), "signals": a.completeIDs(frames.KindRun),
		"pause": a.completeIDs(frames.KindRun, "Planned", "Running"), "resume": a.completeIDs(frames.KindRun, "Paused"),
		"cancel": a.completeIDs(frames.KindRun, "Planned", "Running", "Paused"), "end": a.completeIDs(frames.KindBinding, "Active"),
		"ack": a.completeIDs(frames.KindSignal, "Open"), "suppress": a.completeIDs(frames.KindSignal, "Open", "Acknowledged"),
		"op get": a.completeOperations, "op forget": a.completeUnresolved,
	}
	flags := map[string]completer{
		"context": completeContextFlag, "key": completeKeyFlag, "color": cobra.FixedCompletions(term.Choices(), noFiles),
		"reason":    cobra.FixedCompletions(slices.Sorted(maps.Keys(endReasons)), noFiles),
		"objective": a.completeFlag(frames.KindObjective, "Active"), "run": a.completeFlag(frames.KindRun), "id": noCompletions,
		"owner": a.completeOwners, "op": a.completeUnresolvedFlag, "title": a.completeTitles, "env": noCompletions, "note": noCompletions,
		"listen": noCompletions, "metrics": noCompletions, "quic": noCompletions, "since": noCompletions, "until": noCompletions,
		"state": directories, "cwd": directories,
	}
	flagsOf := map[string]completer{"artifact register --id": a.completeFlag(frames.KindArtifact)}
	each(root, func(c *cobra.Command) {
		path := strings.TrimPrefix(c.CommandPath(), root.Name()+" ")
		switch complete, known := args[path]; {
		case known:
			c.ValidArgsFunction = complete
		case strings.Contains(c.Use, "KIND"):
			c.ValidArgsFunction = a.completeKindAndID(c.ValidArgsFunction)
		case c.ValidArgsFunction == nil && len(c.ValidArgs) == 0 && !slices.Contains(takeFiles, path):
			c.ValidArgsFunction = noCompletions
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			complete, known := flagsOf[path+" --"+f.Name]
			if !known {
				complete, known = flags[f.Name]
			}
			if _, have := c.GetFlagCompletionFunc(f.Name); have {
				return
			}
			if !known && f.Value.Type() != "string" && f.NoOptDefVal == "" { // a number or a duration
				complete, known = noCompletions, true
			}
			if known {
				c.RegisterFlagCompletionFunc(f.Name, complete) //nolint:errcheck // the flag is there, and has none
			}
		})
	})
}

// each visits a tree of commands.
func each(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		each(sub, visit)
	}
}

func noCompletions(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, noFiles
}

func directories(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// completeIDs completes the first argument to the ids of a kind, of those that are in one of states
// where any are given.
func (a *app) completeIDs(kind frames.ObjectKind, states ...string) completer {
	return func(cmd *cobra.Command, args []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, noFiles
		}
		return a.idsOf(cmd, kind, states, part), ordered
	}
}

// completeFlag is completeIDs for the value of a flag.
func (a *app) completeFlag(kind frames.ObjectKind, states ...string) completer {
	return func(cmd *cobra.Command, _ []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.idsOf(cmd, kind, states, part), ordered
	}
}

// completeKindAndID completes the first argument as kinds does, and the second to the ids of that kind.
func (a *app) completeKindAndID(kinds completer) completer {
	return func(cmd *cobra.Command, args []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return kinds(cmd, args, part)
		case 1:
			if kind, err := parseKind(args[0]); err == nil {
				return a.idsOf(cmd, kind, nil, part), ordered
			}
		}
		return nil, noFiles
	}
}

// idsOf are the ids that begin with part, each with its state and title behind it; those whose work goes
// on come first.
func (a *app) idsOf(cmd *cobra.Command, kind frames.ObjectKind, states []string, part string) []cobra.Completion {
	prefix := strings.ToLower(part)
	if strings.Trim(prefix, "0123456789abcdef") != "" {
		return nil
	}
	titles := map[frames.ObjectiveID]string{}
	var live, ended []cobra.Completion
	a.glance(cmd, kind, func(r frames.SnapshotRecord) {
		_, state, detail, err := recordObject(r)
		if err != nil {
			return
		}
		if r.Kind == frames.KindObjective {
			titles[frames.ObjectiveID(r.ID)] = detail
		}
		if r.Kind != kind || !strings.HasPrefix(r.ID.String(), prefix) || len(states) > 0 && !slices.Contains(states, state) {
			return
		}
		if p, err := r.DecodePayload(); err == nil && kind == frames.KindRun {
			if run, ok := p.(*frames.Run); ok && titles[run.ObjectiveID] != "" {
				detail = titles[run.ObjectiveID] // objectives come before runs
			}
		}
		item := cobra.CompletionWithDesc(r.ID.String(), shorten(strings.TrimSpace(printable(state+"  "+detail)), maxDescription))
		if slices.Contains(lives[kind].ended, state) {
			ended = append(ended, item)
		} else {
			live = append(live, item)
		}
	})
	all := append(live, ended...)
	return all[:min(len(all), maxCompletions)]
}

// glance visits the records of a kind and the objectives, if the coordinator gives them at once. It says
// nothing when it does not: whoever presses a key has asked for no message.
//
// It takes no snapshot under an authority that no command has met yet, because what the first one shows
// of lost history is told once, and must be told.
func (a *app) glance(cmd *cobra.Command, kind frames.ObjectKind, visit func(frames.SnapshotRecord)) {
	if a.chooseContext(cmd.Flags().Changed("context")) != nil {
		return
	}
	c, err := client.LoadContext(a.contextPath)
	if err != nil || !a.quietKey(c) {
		return
	}
	opts := client.Options{Name: "coordctl completion", Offered: capsFor(kind)}
	if opts.Key, err = a.key(); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	conn, err := client.Dial(ctx, c, opts)
	if err != nil {
		return
	}
	defer conn.Close() //nolint:errcheck // nothing was changed
	if !conn.Info().Verified {
		return
	}
	snap, err := conn.Snapshot(ctx)
	if err != nil {
		return
	}
	defer snap.Close()                              //nolint:errcheck // it was only read
	snap.Each(func(r frames.SnapshotRecord) error { //nolint:errcheck // what was read is completed to
		if r.Kind == kind || r.Kind == frames.KindObjective {
			visit(r)
		}
		return ctx.Err()
	})
}

// quietKey reports whether the key can be used for a completion. A descriptor gives it once, and an agent may
// ask its user, who has only pressed a key, or take longer than that one waits.
func (a *app) quietKey(c *client.Context) bool {
	if a.keySource == "" {
		return c.Agent == ""
	}
	return !strings.HasPrefix(a.keySource, "fd:") && a.keySource != "agent" && !strings.HasPrefix(a.keySource, "agent:")
}

// completeTitles completes --title to titles that there are: of `update objective ID`, that objective's.
func (a *app) completeTitles(cmd *cobra.Command, args []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	a.glance(cmd, frames.KindObjective, func(r frames.SnapshotRecord) {
		p, err := r.DecodePayload()
		if err != nil || len(args) > 0 && !strings.HasPrefix(r.ID.String(), strings.ToLower(args[0])) {
			return
		}
		title := overview.Title(p.(*frames.Objective).Document)
		if harmless(title) && strings.HasPrefix(title, part) && !slices.Contains(out, title) && len(out) < maxCompletions {
			out = append(out, title)
		}
	})
	return out, noFiles
}

// harmless reports whether a title may be put on a command line as it is: a shell may insert what
// several words have in common without quotes, and then it must not mean anything.
func harmless(title string) bool {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(" ._-+:,/", r)
	}
	return title != "" && strings.TrimSpace(title) == title && title[0] != '-' && title[0] != '_' &&
		len(title) <= maxDescription && !strings.ContainsFunc(title, func(r rune) bool { return !plain(r) })
}

// completeUnresolved completes to the operations whose end this client does not know.
func (a *app) completeUnresolved(cmd *cobra.Command, args []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return a.completeUnresolvedFlag(cmd, args, part)
}

func (a *app) completeUnresolvedFlag(cmd *cobra.Command, _ []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if a.chooseContext(cmd.Flags().Changed("context")) != nil {
		return nil, noFiles
	}
	state, err := a.state()
	if err != nil {
		return nil, noFiles
	}
	var out []cobra.Completion
	for _, u := range state.Unresolved() {
		if id := u.OperationID.String(); strings.HasPrefix(id, strings.ToLower(part)) && len(out) < maxCompletions {
			out = append(out, id)
		}
	}
	return out, noFiles
}

// completeOperations completes to the same, and to the operations that the coordinator shows.
func (a *app) completeOperations(cmd *cobra.Command, args []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
	out, directive := a.completeUnresolved(cmd, args, part)
	if len(args) > 0 {
		return out, directive
	}
	for _, shown := range a.idsOf(cmd, frames.KindOperation, nil, part) {
		id, _, _ := strings.Cut(shown, "\t")
		if at := slices.Index(out, id); at >= 0 {
			out[at] = shown // an id that is there twice is completed to no end
		} else {
			out = append(out, shown)
		}
	}
	return out[:min(len(out), maxCompletions)], directive
}

// completeOwners completes to the owners of the context.
func (a *app) completeOwners(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if a.chooseContext(cmd.Flags().Changed("context")) != nil {
		return nil, noFiles
	}
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return nil, noFiles
	}
	var out []cobra.Completion
	for _, o := range c.Owners {
		if harmless(o.Name) {
			out = append(out, o.Name)
		}
	}
	return out, noFiles
}

// completeContextFlag completes --context to names; files are completed beside them.
func completeContextFlag(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	list, err := readContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return list.names(), cobra.ShellCompDirectiveDefault
}

// completeKeyFlag completes --key to what is no file; files are completed beside it.
func completeKeyFlag(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return []cobra.Completion{"agent"}, cobra.ShellCompDirectiveDefault
}
