package vectors

import (
	"encoding/binary"
	"slices"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
)

// Families of seeds, for [Seed]. Bad cases are seeds too.
const (
	SeedTLV              = "tlv"
	SeedEnvelopes        = "envelopes" // whole outer frames, or their beginnings
	SeedFrames           = "frames"    // type byte, then body
	SeedRecords          = "records"
	SeedOperationResults = "operation_results"
	SeedFacts            = "facts"
	SeedBindingRefs      = "binding_refs"
	SeedEffectTargets    = "effect_targets"
	SeedEffectAttempts   = "effect_attempts"
	SeedSourceGaps       = "source_gaps"
	SeedReplayEvents     = "replay_events"
	SeedCertificates     = "certificates"
	SeedCommands         = "commands" // command_kind as u16, then payload
	SeedPublicKeys       = "public_keys"
)

// Seed adds the bytes of the named families to the corpus of f.
func Seed(f *testing.F, families ...string) {
	f.Helper()
	for _, family := range families {
		for _, b := range Seeds(f, family) {
			f.Add(b)
		}
	}
}

// Seeds returns the bytes of one family. A family without seeds fails t.
func Seeds(t testing.TB, family string) (all [][]byte) {
	t.Helper()
	for _, s := range Load(t) {
		s.seeds(family, func(b []byte) { all = append(all, b) })
	}
	if len(all) == 0 {
		t.Fatalf("vectors: no seed of family %q", family)
	}
	return all
}

// seeds calls add for each seed of a family.
func (s *Set) seeds(family string, add func([]byte)) {
	switch family {
	case SeedTLV:
		for _, v := range s.TLV {
			add(v.Body)
		}
	case SeedEnvelopes:
		s.envelopes(add)
	case SeedFrames:
		s.envelopes(func(b []byte) {
			if len(b) >= codec.HeaderSize {
				add(b[codec.HeaderSize-1:])
			}
		})
	case SeedCommands:
		s.commands(add)
	case SeedReplayEvents:
		for _, d := range s.Digests {
			for _, v := range d.Replay {
				for _, e := range v.Events {
					add(e)
				}
			}
		}
	case SeedCertificates:
		for _, file := range s.Certificates {
			for _, v := range file.Cases {
				add(v.Certificate)
			}
		}
	case SeedPublicKeys:
		for _, v := range s.Ed25519 {
			add(v.PublicKey)
		}
	default:
		for k := range s.Records {
			for _, v := range s.Records[k].list(family) {
				add(v.Image)
			}
		}
	}
}

func (s *Set) envelopes(add func([]byte)) {
	for _, file := range s.Frames {
		for _, v := range file.Frames {
			add(v.Frame)
		}
		for _, v := range file.Refused {
			add(v.Frame)
		}
	}
}

// commands finds the payloads of all well-formed commands.
func (s *Set) commands(add func([]byte)) {
	command := func(frame []byte) {
		var m frames.CoordCommand
		if len(frame) < codec.HeaderSize || frames.Type(frame[codec.HeaderSize-1]) != m.Type() {
			return
		}
		if codec.Decode(&m, frame[codec.HeaderSize:]) == nil {
			add(append(binary.BigEndian.AppendUint16(nil, uint16(m.Kind)), m.Payload...))
		}
	}
	s.envelopes(command)
	for _, file := range s.Digests {
		for _, v := range file.Operation {
			command(v.Frame)
		}
	}
}

// list is the good and bad images of one family.
func (r *RecordFile) list(family string) []Image {
	switch family {
	case SeedRecords:
		return slices.Concat(r.Records, r.BadRecords)
	case SeedOperationResults:
		return slices.Concat(r.OperationResults, r.BadOperationResults)
	case SeedFacts:
		return slices.Concat(r.Facts, r.BadFacts)
	case SeedBindingRefs:
		return slices.Concat(r.BindingRefs, r.BadBindingRefs)
	case SeedEffectTargets:
		return slices.Concat(r.EffectTargets, r.BadEffectTargets)
	case SeedEffectAttempts:
		return slices.Concat(r.EffectAttempts, r.BadEffectAttempts)
	case SeedSourceGaps:
		return slices.Concat(r.SourceGaps, r.BadSourceGaps)
	}
	return nil
}
