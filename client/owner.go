package client

import (
	"fmt"

	"coordinator/handshake"
)

// Signer opens the client's key, as the context names it: what dialling an owner of the
// context proves itself with.
func (c *Context) Signer() (handshake.Signer, error) { return c.key() }

// FindOwner is the context's owner of that name. Empty means the only one. Otherwise the
// error is a *[ContextError] that says which there are.
func (c *Context) FindOwner(name string) (Owner, error) {
	if name == "" && len(c.Owners) == 1 {
		return c.Owners[0], nil
	}
	var names []string
	for _, o := range c.Owners {
		if o.Name == name {
			return o, nil
		}
		names = append(names, o.Name)
	}
	switch {
	case len(names) == 0:
		return Owner{}, &ContextError{c.Path, "no [[owner]] is named in it, so there is nowhere to start a run; coordctl up makes one, or add name, socket and authority of yours"}
	case name == "":
		return Owner{}, &ContextError{c.Path, fmt.Sprintf("several owners are named in it: choose one of %q", names)}
	}
	return Owner{}, &ContextError{c.Path, fmt.Sprintf("no owner %q is named in it; there are %q", name, names)}
}
