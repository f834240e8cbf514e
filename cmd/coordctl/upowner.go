package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
)

const (
	// localOwner is the name of the owner that `up` makes.
	localOwner = "local"
	// ownerGrace bounds the owner's stop. Its processes get their own grace within it, and
	// their ends are recorded; what is left after it dies with the owner.
	ownerGrace = 20 * time.Second
)

func (s *setup) ownerDir() string    { return filepath.Join(s.dir, "owner") }
func (s *setup) ownerSocket() string { return filepath.Join(s.ownerDir(), "owner.sock") }

// ownerReport is what `ownerd init` tells.
type ownerReport struct {
	Authority string `json:"authority"`
	Socket    string `json:"socket"`
}

// owner makes the local process owner of a state that has none, and reports whether there is
// one to run. A context that names owners is left alone: they are the operator's, or were
// made here before. The context comes last, so that an interrupted attempt is gone through
// again.
func (s *setup) owner(ctx context.Context) (bool, error) {
	c, err := client.LoadContext(s.contextPath())
	if err != nil {
		return false, err
	}
	if len(c.Owners) > 0 {
		_, err := os.Lstat(filepath.Join(s.ownerDir(), "owner.toml"))
		return err == nil, nil
	}
	s.say("making a process owner in %s", s.ownerDir())
	var report ownerReport
	err = s.tool(ctx, &report, s.tools.ownerd, "init", "--state", s.ownerDir(), "--witness-id", c.WitnessID.String(),
		"--witness-public-key", handshake.FormatPublicKey(c.WitnessPublicKey), "--exist-ok", "-o", "json")
	if err != nil {
		return false, err
	}
	pin, err := handshake.ParseFingerprint(report.Authority)
	if err != nil {
		return false, fmt.Errorf("ownerd init: authority: %w", err)
	}
	link, err := handshake.LoadKey(filepath.Join(s.coordinatorDir(), "link.ed25519"))
	if err != nil {
		return false, err
	}
	own, err := c.Signer()
	if err != nil {
		return false, err
	}
	id := c.CoordinatorID.String()
	if err := s.enrol(ctx, s.tools.ownerd, s.ownerDir(), link.Public(), "coordinator", "--scope", "effects,facts", "--coordinator", id); err != nil {
		return false, err
	}
	if err := s.enrol(ctx, s.tools.ownerd, s.ownerDir(), own.Public(), localOwner, "--scope", "output", "--coordinator", id); err != nil {
		return false, err
	}
	for _, path := range []string{s.coordinatorConfig(), s.contextPath()} {
		if err := nameOwner(path, localOwner, report.Socket, pin); err != nil {
			return false, err
		}
	}
	return true, nil
}

// nameOwner adds an [[owner]] table to a configuration, unless one of that authority is there,
// and leaves everything else as it is.
func nameOwner(path, name, socket string, pin frames.Fingerprint) error {
	raw, err := durable.ReadPrivate(path, maxSmallFile)
	if err != nil {
		return err
	}
	text, err := addOwner(string(raw), name, socket, pin)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if text == string(raw) {
		return nil
	}
	return durable.Replace(path, []byte(text), durable.PrivateFile)
}

// ownersIn are the owners that a configuration names.
type ownersIn struct {
	Owner []struct {
		Name      string `toml:"name"`
		Authority string `toml:"authority"`
	} `toml:"owner"`
}

// addOwner is the text of a configuration with one more [[owner]] at its end.
func addOwner(text, name, socket string, pin frames.Fingerprint) (string, error) {
	authority := handshake.FormatFingerprint(pin)
	var have, now ownersIn
	if err := toml.Unmarshal([]byte(text), &have); err != nil {
		return "", fmt.Errorf("not valid TOML: %w", err)
	}
	taken := map[string]bool{}
	for _, o := range have.Owner {
		if o.Authority == authority {
			return text, nil
		}
		taken[o.Name] = true
	}
	free := name
	for n := 2; taken[free]; n++ {
		free = fmt.Sprintf("%s-%d", name, n)
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	text += fmt.Sprintf("\n[[owner]]\nname = %q\nsocket = %q\nauthority = %q\n", free, socket, authority)
	if err := toml.Unmarshal([]byte(text), &now); err != nil || len(now.Owner) != len(have.Owner)+1 {
		return "", fmt.Errorf("cannot be edited; add an [[owner]] table with name %q, socket %q and authority %q by hand", free, socket, authority)
	}
	return text, nil
}
