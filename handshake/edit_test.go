package handshake

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEditing(t *testing.T) {
	path := filepath.Join(stateDir(t), "workload-keys")
	require.NoError(t, CreateRegistry(path))
	require.ErrorIs(t, CreateRegistry(path), fs.ErrExist)
	records, err := ListRecords(path, testRules)
	require.NoError(t, err)
	require.Empty(t, records)

	a, b := testRecord(1), testRecord(2)
	require.NoError(t, AddRecord(path, a, testRules))
	appendTo(t, path, "\n# a remark\n")
	require.NoError(t, AddRecord(path, b, testRules))
	records, err = ListRecords(path, testRules)
	require.NoError(t, err)
	require.Equal(t, []Record{a, b}, records)

	require.ErrorIs(t, AddRecord(path, a, testRules), ErrKeyEnrolled)
	c := testRecord(3)
	c.Label = a.Label
	require.ErrorIs(t, AddRecord(path, c, testRules), ErrLabelTaken)

	got, err := RevokeRecord(path, a.Label, testNow, testRules)
	require.NoError(t, err)
	require.Equal(t, uint64(testNow), got.RevokedAt)
	got, err = RevokeRecord(path, FormatKeyID(a.KeyID), testNow+9, testRules)
	require.NoError(t, err)
	require.Equal(t, uint64(testNow), got.RevokedAt, "the first revocation stands")
	for _, missing := range []string{"nobody", FormatKeyID(testRecord(9).KeyID), ""} {
		_, err = RevokeRecord(path, missing, testNow, testRules)
		require.ErrorIs(t, err, ErrNoRecord)
	}

	require.NoError(t, AddRecord(path, c, testRules), "the label of a revoked key is free")
	_, err = RevokeRecord(path, c.Label, testNow, testRules)
	require.NoError(t, err, "an unrevoked record is meant first")
	_, err = RevokeRecord(path, c.Label, testNow, testRules)
	require.ErrorIs(t, err, ErrAmbiguous)

	require.NoError(t, AddRecord(path, a, testRules), "a revoked key is enrolled afresh")
	records, err = ListRecords(path, testRules)
	require.NoError(t, err)
	require.Len(t, records, 3)
	require.Equal(t, a, records[0])
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), "\n\n# a remark\n")
	require.True(t, strings.HasPrefix(string(text), registryHeader))
}

func TestEditingKeepsTheLinesComment(t *testing.T) {
	path := filepath.Join(stateDir(t), "workload-keys")
	a := testRecord(1)
	require.NoError(t, os.WriteFile(path, []byte(a.Line(testRules)+"   # laptop\n"), 0o600))
	_, err := RevokeRecord(path, a.Label, testNow, testRules)
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	a.RevokedAt = testNow
	require.Equal(t, a.Line(testRules)+" # laptop\n", string(text))
}

func TestEditingRefuses(t *testing.T) {
	path := filepath.Join(stateDir(t), "workload-keys")
	for name, alter := range map[string]func(r *Record){
		"scope without a name": func(r *Record) { r.Scope |= 1 << 30 },
		"no scope":             func(r *Record) { r.Scope = 0 },
		"no expiry":            func(r *Record) { r.ExpiresAt = 0 },
		"no label":             func(r *Record) { r.Label = "" },
		"two words":            func(r *Record) { r.Label = "a b" },
		"a line of its own":    func(r *Record) { r.Label = "a\n#" },
		"coordinator":          func(r *Record) { r.Coordinator[0] = 1 },
		"small-order key":      func(r *Record) { r.PublicKey = [32]byte{1} },
	} {
		r := testRecord(1)
		alter(&r)
		require.Error(t, AddRecord(path, r, testRules), name)
		require.NoFileExists(t, path)
	}
	_, err := RevokeRecord(path, "x", testNow, testRules)
	require.ErrorIs(t, err, ErrNoRecord)
	require.NoFileExists(t, path)

	require.NoError(t, os.WriteFile(path, []byte("# fine\nnot a record\n"), 0o600))
	var bad *RegistryError
	require.ErrorAs(t, AddRecord(path, testRecord(1), testRules), &bad)
	require.Equal(t, 2, bad.Line)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "# fine\nnot a record\n", string(text), "a file that does not load is not touched")
}

func TestConcurrentEditorsLoseNothing(t *testing.T) {
	path := filepath.Join(stateDir(t), "workload-keys")
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			if err := AddRecord(path, testRecord(byte(i)), testRules); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	records, err := ListRecords(path, testRules)
	require.NoError(t, err)
	require.Len(t, records, 12)
}

func TestWaitLoaded(t *testing.T) {
	path := filepath.Join(stateDir(t), "workload-keys")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, CreateRegistry(path))
	require.NoError(t, WaitLoaded(ctx, path), "no daemon ever ran")

	t.Run("running", func(t *testing.T) {
		r := follow(t, path, RegistryOptions{})
		published := func() bool { st, err := os.Stat(path + loadedSuffix); return err == nil && st.Size() > 0 }
		eventually(t, "published", published)
		for i := range 5 {
			require.NoError(t, AddRecord(path, testRecord(byte(i)), testRules))
			require.NoError(t, WaitLoaded(ctx, path))
			_, ok := r.Lookup(testRecord(byte(i)).KeyID)
			require.True(t, ok, "the wait ended before the key was in force")
		}
		appendTo(t, path, "bad\n")
		eventually(t, "emptied", r.isEmptied)
		short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, WaitLoaded(short, path), context.DeadlineExceeded)
		require.NoError(t, os.Remove(path+loadedSuffix))
		eventually(t, "published anew", published)
	})
	require.NoError(t, WaitLoaded(ctx, path), "the daemon is gone")
}
