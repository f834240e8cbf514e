package handshake

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"coordinator/internal/durable"
)

// Refusals of the registry editors.
var (
	ErrKeyEnrolled = errors.New("key is enrolled already; revoke it first, or edit its line")
	ErrLabelTaken  = errors.New("label is taken by another key; choose one of its own")
	ErrNoRecord    = errors.New("no such record; list the keys to see them")
	ErrAmbiguous   = errors.New("several records have that label; name the key by its sha256:… id")
)

// registryHeader begins a registry that an editor or an init creates. It is
// not decoration: an empty file counts as damaged.
const registryHeader = "# Workload keys, one a line: ed25519:<hex> scope=<names> expires=<time> [revoked=<time>] [coordinator=<hex>] label=<word>\n"

// CreateRegistry makes a registry without keys at path, which must not exist
// (the error then matches fs.ErrExist).
func CreateRegistry(path string) error {
	if err := durable.Create(path, []byte(registryHeader), durable.PrivateFile); err != nil {
		return fmt.Errorf("create registry: %w", err)
	}
	return nil
}

// ListRecords reads the records of a registry file, in file order.
func ListRecords(path string, rules Rules) ([]Record, error) {
	data, err := durable.ReadPrivate(path, MaxRegistryBytes)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	records, err := parseRegistry(path, data, rules)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return records, nil
}

// AddRecord enrols rec, making the file if it is missing. A key whose record
// is revoked is enrolled afresh in its place. The change is atomic, comments
// stay, and a file that does not load is not touched.
func AddRecord(path string, rec Record, rules Rules) error {
	rec.KeyID = KeyIDOf(rec.PublicKey)
	line := rec.Line(rules)
	// The line must load again: that refuses weak keys, labels and the rest.
	if back, err := ParseRecord(line, rules); err != nil {
		return fmt.Errorf("add key: %w", err)
	} else if back != rec {
		return errors.New("add key: a scope bit has no name in this service")
	}
	err := durable.Update(path, MaxRegistryBytes, func(old []byte) ([]byte, error) {
		if old == nil {
			old = []byte(registryHeader)
		}
		records, err := parseRegistry(path, old, rules)
		if err != nil {
			return nil, err
		}
		replaced := false
		for _, have := range records {
			switch {
			case have.KeyID == rec.KeyID && !have.Revoked():
				return nil, ErrKeyEnrolled
			case have.KeyID == rec.KeyID:
				replaced = true
			case have.Label == rec.Label && !have.Revoked():
				return nil, ErrLabelTaken
			}
		}
		if replaced {
			return checked(path, rewriteLine(old, rec.PublicKey, line), rules)
		}
		return checked(path, append(bytes.Clone(old), line+"\n"...), rules)
	})
	if err != nil {
		return fmt.Errorf("add key: %w", err)
	}
	return nil
}

// RevokeRecord marks one record revoked at now (Unix seconds) and returns it.
// which is a key id in text form or a label. A record that is revoked already
// keeps its time.
func RevokeRecord(path, which string, now uint64, rules Rules) (Record, error) {
	var found Record
	err := durable.Update(path, MaxRegistryBytes, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, ErrNoRecord
		}
		records, err := parseRegistry(path, old, rules)
		if err != nil {
			return nil, err
		}
		if found, err = pick(records, which); err != nil {
			return nil, err
		}
		if found.Revoked() {
			return old, nil
		}
		found.RevokedAt = now
		return checked(path, rewriteLine(old, found.PublicKey, found.Line(rules)), rules)
	})
	if err != nil {
		return Record{}, fmt.Errorf("revoke key: %w", err)
	}
	return found, nil
}

// pick finds the record that which names. Among records of one label a single
// unrevoked one is meant.
func pick(records []Record, which string) (Record, error) {
	id, idErr := ParseKeyID(which)
	var live, dead []Record
	for _, r := range records {
		switch {
		case idErr == nil && r.KeyID == id:
			return r, nil
		case idErr == nil || r.Label != which:
		case r.Revoked():
			dead = append(dead, r)
		default:
			live = append(live, r)
		}
	}
	matches := live
	if len(live) == 0 {
		matches = dead
	}
	switch len(matches) {
	case 0:
		return Record{}, ErrNoRecord
	case 1:
		return matches[0], nil
	}
	return Record{}, ErrAmbiguous
}

// rewriteLine replaces the line that enrols pub and keeps its comment.
func rewriteLine(data []byte, pub [32]byte, with string) []byte {
	out := make([]byte, 0, len(data)+len(with))
	key := FormatPublicKey(pub)
	for line := range bytes.Lines(data) {
		fields, comment := splitComment(strings.TrimSuffix(string(line), "\n"))
		if f := strings.Fields(fields); len(f) == 0 || f[0] != key {
			out = append(out, line...)
			continue
		}
		out = append(out, with...)
		if comment != "" {
			out = append(out, " "+comment...)
		}
		out = append(out, '\n')
	}
	return out
}

// checked refuses an edit that the daemon would refuse to load.
func checked(path string, data []byte, rules Rules) ([]byte, error) {
	if _, err := parseRegistry(path, data, rules); err != nil {
		return nil, err
	}
	return data, nil
}
