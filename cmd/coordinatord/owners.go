package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/quicnet"
	"coordinator/internal/sock"
	"coordinator/owner"
	"coordinator/server/outbox"
)

// maxOwners bounds the owners of one coordinator: each keeps a link.
const maxOwners = 256

// An ownerConfig is one [[owner]] of coordinator.toml.
type ownerConfig struct {
	Name   string
	Socket string // empty when QUIC is set
	QUIC   string // host:port
	Pin    frames.Fingerprint
}

// owners validates the [[owner]] tables. Two may not be the same process owner.
func (raw *tomlConfig) owners(bad func(key, format string, args ...any) error) ([]ownerConfig, error) {
	if len(raw.Owners) > maxOwners {
		return nil, bad("owner", "is there %d times, allowed %d or fewer", len(raw.Owners), maxOwners)
	}
	var out []ownerConfig
	names, pins := map[string]bool{}, map[frames.Fingerprint]bool{}
	for i, o := range raw.Owners {
		key := func(name string) string { return fmt.Sprintf("owner[%d].%s", i, name) }
		if o.Name == "" || len(o.Name) > frames.MaxName || names[o.Name] {
			return nil, bad(key("name"), "must be a word that no other owner has")
		}
		switch {
		case o.QUIC == "":
			if !filepath.IsAbs(o.Socket) {
				return nil, bad(key("socket"), "must be the absolute path of the owner's socket")
			}
			if len(o.Socket) > sock.MaxPath {
				return nil, bad(key("socket"), "is %d bytes long, a socket path may have %d", len(o.Socket), sock.MaxPath)
			}
		case o.Socket != "":
			return nil, bad(key("quic"), "is given beside socket; leave one of them out")
		default:
			if err := quicnet.CheckAddr(o.QUIC); err != nil {
				return nil, bad(key("quic"), "must be the owner's host:port: %v", err)
			}
		}
		pin, err := handshake.ParseFingerprint(o.Authority)
		if err != nil {
			return nil, bad(key("authority"), "must be sha256: and 64 lowercase hex digits, as `ownerd init` printed it")
		}
		if pins[pin] {
			return nil, bad(key("authority"), "is that of another owner above")
		}
		names[o.Name], pins[pin] = true, true
		out = append(out, ownerConfig{Name: o.Name, Socket: o.Socket, QUIC: o.QUIC, Pin: pin})
	}
	return out, nil
}

// ownersText renders the [[owner]] tables, or a commented one as an example.
func ownersText(owners []ownerConfig) string {
	if len(owners) == 0 {
		return "# [[owner]]\n# name      = \"local\"\n# socket    = \"/path/of/owner.sock\"\n# authority = \"sha256:...\"\n"
	}
	var b strings.Builder
	for _, o := range owners {
		fmt.Fprintf(&b, "[[owner]]\nname      = %q\n", o.Name)
		if o.QUIC != "" {
			fmt.Fprintf(&b, "quic      = %q\n", o.QUIC)
		} else {
			fmt.Fprintf(&b, "socket    = %q\n", o.Socket)
		}
		fmt.Fprintf(&b, "authority = %q\n", handshake.FormatFingerprint(o.Pin))
	}
	return b.String()
}

// ownerLinks makes the dialers of the configured owners. None connects before it is used.
func ownerLinks(cfg *config) ([]outbox.Owner, error) {
	if len(cfg.Owners) == 0 {
		return nil, nil
	}
	key, err := handshake.LoadKey(cfg.path(linkKey))
	if err != nil {
		return nil, err
	}
	var out []outbox.Owner
	for _, o := range cfg.Owners {
		opts := owner.ClientOptions{
			Socket: o.Socket, Pin: o.Pin, CoordinatorID: cfg.CoordinatorID, Key: key,
			Scope: owner.ScopeEffects | owner.ScopeFacts, Clock: clock.System(), Rand: rand.Reader,
		}
		if o.QUIC != "" {
			opts.Dial = owner.QUICDialer(o.QUIC, o.Pin, opts.Clock)
		}
		out = append(out, outbox.Owner{
			Name: o.Name, Fingerprint: o.Pin,
			Dial: func(ctx context.Context, h outbox.Handlers) (outbox.Link, error) {
				opts := opts
				opts.OnBindings, opts.OnFact, opts.OnFactsEnd = h.Bindings, h.Fact, h.FactsEnd
				c, err := owner.Dial(ctx, opts)
				if err != nil {
					return nil, err // not a nil *Client in an interface
				}
				if missing := opts.Scope &^ c.Scope(); missing != 0 { // runs would start and tell nothing, or the reverse
					return nil, errors.Join(fmt.Errorf("this coordinator's key has not the scope %s at the owner; enrol it with effects,facts",
						handshake.ScopeNames(owner.ScopeNames()).Format(missing)), c.Close())
				}
				return c, nil
			},
		})
	}
	return out, nil
}
