// Package vectors loads the golden vectors of the protocol: bytes that another
// implementation produced from an independent reading of the specification, with the
// outcome that each must have. Its tests hold this code to all of them; package fuzz takes
// its seeds from them.
//
// The vectors are the JSON files of testdata. A family is one file, such as frames.json;
// files named frames.NAME.json beside it add cases in the same format. The environment
// variable COORDINATOR_VECTORS names one more directory of the same shape, which is loaded
// and tested as well; a relative path counts from the module's root. (The go command
// caches test results without looking into other directories: add -count=1.)
//
// Loading fails closed: a missing file, an unknown one, an empty list and an unknown,
// missing or ill-formed member are all errors.
package vectors

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// DirVariable names the environment variable of a further directory of vectors.
const DirVariable = "COORDINATOR_VECTORS"

//go:embed testdata/*.json
var testdata embed.FS

// A Set is everything that one directory holds. Its JSON shape is that of the files.
type Set struct {
	Dir          string // "testdata", or the further directory
	TLV          []TLV
	Frames       []FrameFile
	Records      []RecordFile
	Digests      []DigestFile
	Certificates []CertificateFile
	Handshakes   []Handshake
	Ed25519      []Ed25519
}

// TLV is one body and either its fields and canonical form, or an error.
type TLV struct {
	Name      string  `json:"name"`
	Body      Hex     `json:"body"`
	Fields    []Field `json:"fields,omitempty" empty:"ok"`
	Canonical *Hex    `json:"canonical,omitempty"`
	Error     bool    `json:"error,omitempty"`
}

// FrameFile is the shape of frames.json.
type FrameFile struct {
	Frames  []Frame   `json:"frames,omitempty"`
	Refused []Refused `json:"refused,omitempty"`
}

// Frame is one whole outer frame and the values of its fields by protocol name.
type Frame struct {
	Name   string         `json:"name"`
	Type   uint8          `json:"type"`
	Frame  Hex            `json:"frame"`
	Values map[string]any `json:"values"` // numbers are json.Number
}

// Refused is a frame, or the beginning of one, that a receiver in State answers with Code.
type Refused struct {
	Name      string `json:"name"`
	Frame     Hex    `json:"frame"`
	Direction string `json:"direction"`
	State     string `json:"state"`
	Code      uint16 `json:"code"`
}

// RecordFile is the shape of records.json: images that decode and re-encode to the same
// bytes, and bad ones.
type RecordFile struct {
	Records             []Image `json:"records,omitempty"`
	BadRecords          []Image `json:"bad_records,omitempty"`
	OperationResults    []Image `json:"operation_results,omitempty"`
	BadOperationResults []Image `json:"bad_operation_results,omitempty"`
	Facts               []Image `json:"facts,omitempty"`
	BadFacts            []Image `json:"bad_facts,omitempty"`
	BindingRefs         []Image `json:"binding_refs,omitempty"`
	BadBindingRefs      []Image `json:"bad_binding_refs,omitempty"`
	EffectTargets       []Image `json:"effect_targets,omitempty"`
	BadEffectTargets    []Image `json:"bad_effect_targets,omitempty"`
	EffectAttempts      []Image `json:"effect_attempts,omitempty"`
	BadEffectAttempts   []Image `json:"bad_effect_attempts,omitempty"`
	SourceGaps          []Image `json:"source_gaps,omitempty"`
	BadSourceGaps       []Image `json:"bad_source_gaps,omitempty"`
}

// Image is one positional value.
type Image struct {
	Name  string `json:"name"`
	Image Hex    `json:"image"`
}

// DigestFile is the shape of digests.json.
type DigestFile struct {
	Operation     []OperationDigest `json:"operation,omitempty"`
	Effect        []EffectDigest    `json:"effect,omitempty"`
	Snapshot      []SnapshotDigest  `json:"snapshot,omitempty"`
	Replay        []ReplayDigest    `json:"replay,omitempty"`
	Evidence      []EvidenceDigest  `json:"evidence,omitempty"`
	AdminRecordID []AdminRecordID   `json:"admin_record_id,omitempty"`
}

// OperationDigest is the digest of a whole COORD_COMMAND frame.
type OperationDigest struct {
	Name   string `json:"name"`
	Frame  Hex    `json:"frame"`
	Digest Hex    `json:"digest"`
}

// EffectDigest is the digest of one effect.
type EffectDigest struct {
	Name    string `json:"name"`
	Kind    uint8  `json:"kind"`
	Target  Hex    `json:"target"`
	Payload Hex    `json:"payload"`
	Digest  Hex    `json:"digest"`
}

// SnapshotDigest is the digest of a snapshot; Records are SnapshotRecord images.
type SnapshotDigest struct {
	Name          string `json:"name"`
	CoordinatorID Hex    `json:"coordinator_id"`
	Epoch         U64    `json:"authority_epoch"`
	Activation    U64    `json:"activation_sequence"`
	Base          U64    `json:"base_event_cut"`
	Records       []Hex  `json:"records" empty:"ok"`
	Digest        Hex    `json:"digest"`
}

// ReplayDigest is the digest of a replay; Events are ReplayEvent images.
type ReplayDigest struct {
	Name           string `json:"name"`
	CoordinatorID  Hex    `json:"coordinator_id"`
	Epoch          U64    `json:"authority_epoch"`
	Activation     U64    `json:"activation_sequence"`
	SubscriptionID Hex    `json:"subscription_id"`
	After          U64    `json:"after_event_cut"`
	Cut            U64    `json:"replay_cut"`
	Events         []Hex  `json:"events" empty:"ok"`
	Digest         Hex    `json:"digest"`
}

// EvidenceDigest is the seal of a binding; Facts are TerminalSourceFact images.
type EvidenceDigest struct {
	Name          string `json:"name"`
	CoordinatorID Hex    `json:"coordinator_id"`
	BindingID     Hex    `json:"binding_id"`
	Facts         []Hex  `json:"facts" empty:"ok"`
	Digest        Hex    `json:"digest"`
}

// AdminRecordID is the derived id of an ADMIN record.
type AdminRecordID struct {
	Name    string `json:"name"`
	Kind    uint16 `json:"kind"`
	Subject Hex    `json:"subject"`
	ID      Hex    `json:"id"`
}

// CertificateFile is the shape of certificates.json.
type CertificateFile struct {
	Pins  CertificatePins `json:"pins"`
	Cases []Certificate   `json:"cases"`
}

// CertificatePins are what the verifier trusts.
type CertificatePins struct {
	WitnessID        Hex `json:"witness_id"`
	WitnessPublicKey Hex `json:"witness_public_key"`
	CoordinatorID    Hex `json:"coordinator_id"`
}

// Certificate is one activation certificate, good or bad at Now (Unix seconds).
type Certificate struct {
	Name        string `json:"name"`
	Certificate Hex    `json:"certificate"`
	Now         U64    `json:"now"`
	Valid       bool   `json:"valid"`
}

// Handshake is one whole workload proof: what goes in, and what both sides derive.
type Handshake struct {
	AuthoritySeed      Hex    `json:"authority_seed"`
	AuthorityPublicKey Hex    `json:"authority_public_key"`
	WorkloadSeed       Hex    `json:"workload_seed"`
	WorkloadPublicKey  Hex    `json:"workload_public_key"`
	KeyID              Hex    `json:"key_id"`
	Service            string `json:"service"`
	ClientNonce        Hex    `json:"client_nonce"`
	ServerNonce        Hex    `json:"server_nonce"`
	Incarnation        Hex    `json:"incarnation"`
	Peer               struct {
		UID U64 `json:"uid"`
		GID U64 `json:"gid"`
		PID U64 `json:"pid"`
	} `json:"peer"`
	UDSBinding        Hex    `json:"uds_binding"`
	TLSContext        Hex    `json:"tls_context"`
	TLSContextWitness Hex    `json:"tls_context_witness"`
	ServerTranscript  Hex    `json:"server_transcript"`
	AuthorityProof    Hex    `json:"authority_proof"`
	RequestedExpiry   U64    `json:"requested_expiry"`
	ScopeBytes        Hex    `json:"scope_bytes"`
	ClientTranscript  Hex    `json:"client_transcript"`
	WorkloadProof     Hex    `json:"workload_proof"`
	FingerprintText   string `json:"fingerprint_text"`
}

// Ed25519 is one verdict of the strict verifier.
type Ed25519 struct {
	Name      string `json:"name"`
	PublicKey Hex    `json:"public_key"`
	Message   Hex    `json:"message"`
	Signature Hex    `json:"signature"`
	Valid     bool   `json:"valid"`
}

// Load loads the vectors of testdata and of the further directory, if one is named. Any
// fault fails t.
func Load(t testing.TB) []*Set {
	t.Helper()
	sets, err := load()
	if err != nil {
		t.Fatal(err)
	}
	return sets
}

func load() ([]*Set, error) {
	own, err := fs.Sub(testdata, "testdata")
	if err != nil {
		return nil, err
	}
	set, err := LoadFS("testdata", own)
	if err != nil {
		return nil, err
	}
	sets := []*Set{set}
	if dir := os.Getenv(DirVariable); dir != "" {
		if dir, err = fromRoot(dir); err != nil {
			return nil, err
		}
		set, err := LoadFS(dir, os.DirFS(dir))
		if err != nil {
			return nil, err
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// fromRoot makes a relative path count from the directory of go.mod, wherever under it
// the test runs.
func fromRoot(path string) (string, error) {
	if filepath.IsAbs(path) {
		return path, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for root := dir; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return filepath.Join(root, path), nil
		}
		if root == filepath.Dir(root) {
			return filepath.Join(dir, path), nil
		}
	}
}

// LoadFS loads the directory fsys; dir names it in errors and in the set.
func LoadFS(dir string, fsys fs.FS) (*Set, error) {
	names, err := fs.Glob(fsys, "*.json")
	if err != nil {
		return nil, fmt.Errorf("vectors %s: %w", dir, err)
	}
	s := &Set{Dir: dir}
	families := s.families()
	for family := range families {
		if !slices.Contains(names, family+".json") {
			return nil, fmt.Errorf("vectors %s: %s.json is missing", dir, family)
		}
	}
	for _, name := range names {
		family, more, _ := strings.Cut(strings.TrimSuffix(name, ".json"), ".")
		read, ok := families[family]
		if !ok {
			return nil, fmt.Errorf("vectors %s: %s is no file of vectors that this code knows", dir, name)
		}
		raw, err := fs.ReadFile(fsys, name)
		if err == nil {
			err = read(raw, more == "")
		}
		if err != nil {
			return nil, fmt.Errorf("vectors %s: %s: %w", dir, name, err)
		}
	}
	return s, nil
}

// families maps each file name to what reads it into s. A family's own file is whole: it
// has every list that it must have.
func (s *Set) families() map[string]func(raw []byte, whole bool) error {
	return map[string]func([]byte, bool) error{
		"tlv":          func(raw []byte, _ bool) error { return appendCases(raw, &s.TLV) },
		"ed25519":      func(raw []byte, _ bool) error { return appendCases(raw, &s.Ed25519) },
		"frames":       func(raw []byte, whole bool) error { return appendFile(raw, whole, &s.Frames, "frames", "refused") },
		"certificates": func(raw []byte, whole bool) error { return appendFile(raw, whole, &s.Certificates) },
		"handshake":    func(raw []byte, whole bool) error { return appendFile(raw, whole, &s.Handshakes) },
		"records": func(raw []byte, whole bool) error {
			return appendFile(raw, whole, &s.Records, "records", "operation_results", "bad_operation_results", "facts",
				"bad_facts", "binding_refs", "bad_binding_refs", "effect_targets")
		},
		"digests": func(raw []byte, whole bool) error {
			return appendFile(raw, whole, &s.Digests, "operation", "effect", "snapshot", "replay", "evidence", "admin_record_id")
		},
	}
}
