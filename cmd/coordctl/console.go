package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/console"
)

// consoleFlags are the flags of `console`.
type consoleFlags struct {
	listen, metrics string
	noBrowser       bool
}

func (a *app) consoleCommand() *cobra.Command {
	var f consoleFlags
	c := &cobra.Command{
		Use:   "console",
		Short: "Serve the web console on this machine until Ctrl-C",
		Long: `Serve the web console on this machine until Ctrl-C: what is running, what is stuck and whether
to believe the screen, live, and the commands that deal with it. The page is part of this
program and loads nothing from elsewhere.

The first line on standard output is the address to open. Its token is good once, for one
browser; start the console again for another one. The console is a client like every other
and may do what its key may. It listens on this machine alone: to use it from another one,
forward its port with ssh -L, and open the address there.`,
		Example: `  coordctl console
  coordctl console --listen 127.0.0.1:8080 --no-browser`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.console(cmd.Context(), f) },
	}
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:0", "the `ADDR` to listen on, host:port on this machine; port 0 takes a free one")
	c.Flags().StringVar(&f.metrics, "metrics", "", "the `URL` of the coordinator's metrics listener on this machine, for its quotas and latencies")
	c.Flags().BoolVar(&f.noBrowser, "no-browser", false, "do not open a browser, only print the address")
	return c
}

func (a *app) console(ctx context.Context, f consoleFlags) (err error) {
	if err := console.CheckListen(f.listen); err != nil {
		return listenUsage(err, f.listen)
	}
	if err := console.CheckMetrics(f.metrics); err != nil {
		return usage("%v", err)
	}
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return err
	}
	opts := console.Options{Context: c, Metrics: f.metrics, Version: version(), Complaints: a.stderr, Backoff: client.Backoff{Max: watchPause}}
	if opts.Key, err = a.key(); err != nil {
		return err
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return usage("--listen: %v", err)
	}
	s, err := console.New(l, opts)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Run(ctx) }()
	if err := a.showAddress(s.URL()); err != nil {
		cancel()
		return errors.Join(err, <-served)
	}
	if !f.noBrowser {
		clean, err := openBrowser(s.URL(), filepath.Dir(c.Path))
		defer clean()
		if err != nil {
			fmt.Fprintf(a.stderr, "coordctl: no browser was opened: %v\n", err)
		}
	}
	return <-served
}

// listenUsage words an address that is not listened on.
func listenUsage(err error, listen string) error {
	var remote *console.RemoteListenError
	if !errors.As(err, &remote) {
		return usage("%v", err)
	}
	_, port, _ := net.SplitHostPort(listen) // which it has, or it were no remote one
	return usage("%v: whoever reached it could try to command this coordinator as you.\n  next: leave --listen at 127.0.0.1:%s here, and on the other machine: ssh -L %s:127.0.0.1:%s THIS-MACHINE",
		err, port, port, port)
}

// showAddress prints the address on the first line.
func (a *app) showAddress(url string) error {
	if a.structured() {
		return a.emitItem(object{{"url", url}})
	}
	_, err := fmt.Fprintln(a.stdout, url)
	return err
}

// openBrowser opens the address in the browser of the desktop, if there is one. Command lines
// are seen by everybody on the machine and the token must not be: the browser is sent by way
// of a file that only this user reads, which clean removes.
func openBrowser(url, dir string) (clean func(), err error) {
	clean = func() {}
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return clean, nil
	}
	program, err := exec.LookPath("xdg-open")
	if err != nil {
		return clean, nil
	}
	f, err := os.CreateTemp(dir, "console-*.html") // with mode 0600
	if err != nil {
		return clean, err
	}
	remove := func() { os.Remove(f.Name()) } //nolint:errcheck // the token in it is used, or the console has ended
	_, err = fmt.Fprintf(f, "<!doctype html><meta charset=\"utf-8\"><title>Coordinator console</title><meta http-equiv=\"refresh\" content=\"0; url=%s\">\n", html.EscapeString(url))
	if err = errors.Join(err, f.Close()); err != nil {
		return remove, err
	}
	cmd := exec.Command(program, f.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is for the console, not for the browser
	if err := cmd.Start(); err != nil {
		return remove, err
	}
	return remove, cmd.Process.Release() // it may become the browser, which outlives the console
}

// version is what this program was made of.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return ""
}
