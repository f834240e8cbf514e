package main

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"

	"coordinator/client"
	"coordinator/internal/durable"
	"coordinator/internal/quicnet"
)

// remoteContextPath is the context of clients that come over QUIC.
func (s *setup) remoteContextPath() string { return filepath.Join(s.clientDir(), "context-quic.toml") }

// remote makes the coordinator serve addr from its next start on, and writes the context of
// clients that come that way. The state must be complete.
func (s *setup) remote(addr string) error {
	if err := quicnet.CheckAddr(addr); err != nil {
		return usage("--quic: %v", err)
	}
	raw, err := durable.ReadPrivate(s.coordinatorConfig(), maxSmallFile)
	if err != nil {
		return err
	}
	text, err := setQUIC(string(raw), addr)
	if err != nil {
		return fmt.Errorf("%s: %w", s.coordinatorConfig(), err)
	}
	if text != string(raw) {
		if err := durable.Replace(s.coordinatorConfig(), []byte(text), durable.PrivateFile); err != nil {
			return err
		}
		s.say("quic = %q is now in %s; take the line out to serve this machine alone again", addr, s.coordinatorConfig())
	}
	c, err := client.LoadContext(s.contextPath())
	if err != nil {
		return err
	}
	c.Name += "-quic"
	c.Socket, c.QUIC = "", reachable(addr)
	return c.Save(s.remoteContextPath())
}

// reachable is where a client on this machine finds a listener on addr, which may stand for
// every address there is.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	switch ip := net.ParseIP(host); {
	case host == "" || ip != nil && ip.To4() != nil && ip.IsUnspecified():
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

var (
	quicLine    = regexp.MustCompile(`(?m)^[ \t]*quic[ \t]*=.*$`)
	quicExample = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*quic[ \t]*=.*$`)
	tableLine   = regexp.MustCompile(`(?m)^[ \t]*\[`)
)

// setQUIC puts the line into coordinator.toml, in place of the one that is there or of the
// example, and leaves everything else as it is.
func setQUIC(text, addr string) (string, error) {
	end := len(text) // of what comes before the first table
	if at := tableLine.FindStringIndex(text); at != nil {
		end = at[0]
	}
	top, rest, line := text[:end], text[end:], fmt.Sprintf("quic = %q", addr)
	at := quicLine.FindStringIndex(top)
	if at == nil {
		at = quicExample.FindStringIndex(top)
	}
	if at != nil {
		top = top[:at[0]] + line + top[at[1]:]
	} else {
		if top != "" && !strings.HasSuffix(top, "\n") {
			top += "\n"
		}
		top += line + "\n"
	}
	var have struct {
		QUIC string `toml:"quic"`
	}
	if err := toml.Unmarshal([]byte(top+rest), &have); err != nil || have.QUIC != addr {
		return "", fmt.Errorf("cannot be edited; put %s into it by hand, before the first [table]", line)
	}
	return top + rest, nil
}
