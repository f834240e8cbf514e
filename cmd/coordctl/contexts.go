package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/handshake"
	"coordinator/internal/durable"
)

const (
	// localName is the name of the context that `coordctl up` makes without --state.
	localName = "local"
	// maxContexts bounds the list; each line is a path.
	maxContexts = 256
	// unusable begins what stands for the endpoint of a context that cannot be read.
	unusable = "unusable: "
)

// contextName is what a context may be called: nothing that looks like a path.
var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// contextsFile is where the named contexts are kept.
func contextsFile() string { return filepath.Join(stateHome(), "contexts.toml") }

// contexts is that file's content.
type contexts struct {
	Current string         `toml:"current,omitempty"`
	Context []namedContext `toml:"context,omitempty"`
}

type namedContext struct {
	Name string `toml:"name"`
	Path string `toml:"path"`
}

func parseContexts(raw []byte) (contexts, error) {
	var c contexts
	meta, err := toml.Decode(string(raw), &c)
	if err == nil && len(meta.Undecoded()) > 0 {
		err = fmt.Errorf("unknown key %q", meta.Undecoded()[0].String())
	}
	if err == nil && c.Current != "" && c.path(c.Current) == "" {
		err = fmt.Errorf("current is %q, which is not in the list", c.Current)
	}
	if err != nil {
		return contexts{}, usage("%s: %v; mend it or remove it", contextsFile(), err)
	}
	return c, nil
}

// readContexts reads the list; a missing file is an empty one.
func readContexts() (contexts, error) {
	raw, err := durable.ReadOwned(contextsFile(), maxSmallFile)
	if errors.Is(err, fs.ErrNotExist) {
		return contexts{}, nil
	}
	if err != nil {
		return contexts{}, err
	}
	return parseContexts(raw)
}

// path is where the context of that name lies; empty when there is none.
func (c *contexts) path(name string) string {
	for _, n := range c.Context {
		if n.Name == name {
			return n.Path
		}
	}
	if name == localName {
		return defaultContext()
	}
	return ""
}

// names are those of the list, and of the context that needs no place in it.
func (c *contexts) names() []string {
	out := []string{localName}
	for _, n := range c.Context {
		if n.Name != localName {
			out = append(out, n.Name)
		}
	}
	return out
}

// editContexts changes the list durably.
func editContexts(edit func(*contexts) error) error {
	if err := durable.MkdirPrivate(stateHome()); err != nil {
		return err
	}
	return durable.UpdateOwned(contextsFile(), maxSmallFile, func(old []byte) ([]byte, error) {
		c, err := parseContexts(old)
		if err != nil {
			return nil, err
		}
		if err := edit(&c); err != nil {
			return nil, err
		}
		var b bytes.Buffer
		b.WriteString("# The contexts that coordctl knows by name.\n")
		err = toml.NewEncoder(&b).Encode(c)
		return b.Bytes(), err
	})
}

// chooseContext settles which context this run uses: the file or name that was given, else
// the current one.
func (a *app) chooseContext(given bool) error {
	list, err := readContexts()
	if err != nil && !given {
		return err
	}
	a.defaultPath = defaultContext()
	if list.Current != "" {
		a.defaultPath = list.path(list.Current)
	}
	if !given {
		a.contextPath = a.defaultPath
		return nil
	}
	if _, err := os.Lstat(a.contextPath); err == nil || !contextName.MatchString(a.contextPath) {
		return nil // a file, or what can only be one
	}
	if path := list.path(a.contextPath); path != "" {
		a.contextPath = path
	}
	return nil
}

// usual is the context that is used when none is named.
func (a *app) usual() string {
	if a.defaultPath == "" {
		return defaultContext()
	}
	return a.defaultPath
}

func (a *app) contextCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List the contexts that have names", Args: exactArgs(),
		Long:    `List the contexts that have names, where their coordinators are, and which is used when none is named.`,
		Example: "  coordctl context list\n  coordctl context list -o wide",
		RunE:    func(*cobra.Command, []string) error { return a.contextList() },
	}
	add := &cobra.Command{
		Use: "add NAME FILE", Short: "Give a context file a name, for --context and context use", Args: exactArgs("NAME", "FILE"),
		Long:    `Give a context file a name, for --context and context use. The file stays where it is, and is checked.`,
		Example: "  coordctl context add staging /srv/staging/client/context.toml",
		RunE:    func(_ *cobra.Command, args []string) error { return a.contextAdd(args[0], args[1]) },
	}
	use := &cobra.Command{
		Use: "use NAME", Short: "Use a context where none is named", Args: exactArgs("NAME"), ValidArgsFunction: completeContexts,
		Long:    `Use a context where none is named, from now on. The context that coordctl up makes is called local.`,
		Example: "  coordctl context use staging\n  coordctl context use local",
		RunE:    func(_ *cobra.Command, args []string) error { return a.contextUse(args[0]) },
	}
	show := &cobra.Command{
		Use: "show [NAME]", Short: "Show a context, or the one in use", ValidArgsFunction: completeContexts,
		Long:    `Show a context, or the one in use: where its coordinator is, what it pins of it, and its owners.`,
		Example: "  coordctl context show\n  coordctl context show staging -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("%s takes at most a name", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.contextShow(args) },
	}
	return group("context", "Choose among coordinators", `Choose among coordinators. A context is a file that says where one is and how to know it; contexts can
have names.`, list, add, use, show)
}

func completeContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := readContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return list.names(), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) contextList() error {
	list, err := readContexts()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list.Context, func(n namedContext) bool { return n.Name == localName }) {
		if _, err := os.Lstat(defaultContext()); err == nil {
			list.Context = slices.Insert(list.Context, 0, namedContext{localName, defaultContext()})
		}
	}
	rows, wide := []object{}, [][]string{}
	for _, n := range list.Context {
		var endpoint string
		pins := []string{"-", "-", "-"}
		if c, err := client.LoadContext(n.Path); err != nil {
			endpoint = unusable + err.Error()
		} else {
			endpoint = address(c)
			pins = []string{c.CoordinatorID.String(), handshake.FormatFingerprint(c.Authority), c.WitnessID.String()}
		}
		wide = append(wide, pins)
		rows = append(rows, object{{"name", n.Name}, {"current", n.Path == a.usual()}, {"endpoint", endpoint}, {"path", n.Path}})
	}
	if a.structured() {
		return a.emitList(rows)
	}
	if len(rows) == 0 {
		fmt.Fprintln(a.stderr, "no contexts; coordctl up makes one, and coordctl context add names others")
		return nil
	}
	heads := []string{"", "NAME", "ENDPOINT", "PATH"}
	if a.output.Wide() {
		heads = append(heads, "COORDINATOR", "AUTHORITY", "WITNESS")
	}
	var table [][]string
	for i, r := range rows {
		mark := " "
		if r[1].value.(bool) {
			mark = "*"
		}
		endpoint := cell(r[2].value)
		if strings.HasPrefix(endpoint, unusable) {
			endpoint = a.paint(a.stdout).Bad(endpoint)
		}
		cells := []string{mark, cell(r[0].value), endpoint, cell(r[3].value)}
		if a.output.Wide() {
			cells = append(cells, wide[i]...)
		}
		table = append(table, cells)
	}
	return a.writeTable(heads, table)
}

// address is where the coordinator of a context is.
func address(c *client.Context) string {
	if c.QUIC != "" {
		return "quic " + c.QUIC
	}
	return c.Socket
}

func (a *app) contextAdd(name, file string) error {
	if !contextName.MatchString(name) {
		return usage("%q cannot be a context's name: letters, digits, '-', '_' and '.', at most 64", name)
	}
	c, err := client.LoadContext(file)
	if err != nil {
		return err
	}
	return editContexts(func(l *contexts) error {
		if have := l.path(name); have != "" && have != c.Path {
			if _, err := os.Lstat(have); err == nil || name != localName {
				return usage("%s is the name of %s already", name, have)
			}
		}
		l.Context = slices.DeleteFunc(l.Context, func(n namedContext) bool { return n.Name == name })
		if len(l.Context) >= maxContexts {
			return usage("there are %d contexts already; take some out of %s", len(l.Context), contextsFile())
		}
		l.Context = append(l.Context, namedContext{name, c.Path})
		return nil
	})
}

func (a *app) contextUse(name string) error {
	return editContexts(func(l *contexts) error {
		path := l.path(name)
		if path == "" {
			return usage("there is no context %q%s", name, hintOr(name, l.names(), "see coordctl context list, or add it with coordctl context add"))
		}
		if _, err := client.LoadContext(path); err != nil {
			return err
		}
		l.Current = name
		return nil
	})
}

func (a *app) contextShow(args []string) error {
	path := a.contextPath
	if len(args) == 1 {
		list, err := readContexts()
		if err != nil {
			return err
		}
		if path = list.path(args[0]); path == "" {
			return usage("there is no context %q%s", args[0], hintOr(args[0], list.names(), "see coordctl context list"))
		}
	}
	c, err := client.LoadContext(path)
	if err != nil {
		return err
	}
	o := object{{"name", c.Name}, {"path", c.Path}}
	for _, m := range []member{{"socket", c.Socket}, {"quic", c.QUIC}} {
		if m.value != "" {
			o = append(o, m)
		}
	}
	o = append(o, member{"coordinator_id", c.CoordinatorID.String()}, member{"authority", handshake.FormatFingerprint(c.Authority)},
		member{"witness_id", c.WitnessID.String()}, member{"witness_public_key", handshake.FormatPublicKey(c.WitnessPublicKey)})
	for _, m := range []member{{"key_file", c.KeyFile}, {"agent", c.Agent}} {
		if m.value != "" {
			o = append(o, m)
		}
	}
	var owners []string
	for _, w := range c.Owners {
		owners = append(owners, w.Name)
	}
	if owners != nil && a.structured() {
		o = append(o, member{"owners", owners})
	} else if owners != nil {
		o = append(o, member{"owners", strings.Join(owners, ",")})
	}
	return a.print(o)
}
