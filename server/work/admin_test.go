package work

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/codec"
	"coordinator/frames"
)

func TestChangeRetention(t *testing.T) {
	s := newState(t)
	out, err := s.do(retention(t, 1, 3_000_000, frames.Precondition{Object: retentionRef, Revision: 1}), alice)
	require.NoError(t, err)
	require.Equal(t, frames.ResultNone, out.Result.Kind)
	require.Len(t, out.Changes, 3)
	require.Equal(t, frames.EventOperationChanged, out.Changes[0].Event)
	require.Equal(t, kindDue, out.Changes[2].Ref().Kind, "and when its own result may go")
	require.Zero(t, out.Changes[1].Event, "ADMIN has no event and comes behind it")
	require.True(t, out.Changes[1].Live)
	r, err := Retention(s)
	require.NoError(t, err)
	require.Equal(t, frames.Retention{OperationResultSecs: 3_000_000, EventBytes: 1, ArtifactBytes: 1}, r)
	require.EqualValues(t, 2, s.rows[retentionRef].Record.Revision)
}

// A result keeps the longest retention advertised since its completion [D-42].
func TestRetentionPromiseAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newState(t)
		adverts := map[frames.EventSequence]uint64{}
		ops := map[byte]uint64{} // what each op was promised when it finished
		next := byte(0)
		inForce := uint64(DefaultOperationResultSecs)
		fresh := func() bool {
			if next == math.MaxUint8 { // no id is left, and there is no other action to be chosen
				return false
			}
			next++
			return true
		}
		rt.Repeat(map[string]func(*rapid.T){
			"change": func(rt *rapid.T) {
				if !fresh() {
					return
				}
				secs := rapid.Uint64Range(DefaultOperationResultSecs, DefaultOperationResultSecs+20).Draw(rt, "secs")
				ops[next] = inForce
				out, err := s.do(retention(t, next, secs), alice)
				require.NoError(rt, err)
				inForce = secs
				adverts[out.Result.Sequence] = secs
			},
			"work": func(rt *rapid.T) {
				if !fresh() {
					return
				}
				ops[next] = inForce
				_, err := s.do(create(t, next, next, ""), alice)
				require.NoError(rt, err)
			},
			"": func(rt *rapid.T) {
				for op, promise := range ops {
					meta, err := DecodeOpMeta(s.rows[OperationRef(frames.OperationID{op})].Annex)
					require.NoError(rt, err)
					want := promise
					for seq, secs := range adverts {
						if seq >= meta.FinalSequence {
							want = max(want, secs)
						}
					}
					got, err := RetentionPromise(s, meta)
					require.NoError(rt, err)
					require.Equal(rt, want, got)
				}
			},
		})
	})
}

func TestRetentionHistoryIsBoundedAndNeverBreaksAPromise(t *testing.T) {
	var m retentionMeta
	const top = 10 * maxAdverts
	for i := range uint64(top) {
		m.advertise(frames.EventSequence(i+1), 2*top-i) // ever shorter: nothing is exceeded
	}
	require.Len(t, m.adverts, maxAdverts)
	for i := range uint64(top) {
		require.GreaterOrEqual(t, m.longestSince(frames.EventSequence(i+1)), 2*top-i)
	}
	back, err := decodeRetentionMeta(m.encode())
	require.NoError(t, err)
	require.Equal(t, m, back)
}

func TestGenesisRetentionRefusesWhatNoStoreMayHold(t *testing.T) {
	good := frames.Retention{OperationResultSecs: DefaultOperationResultSecs, EventBytes: 1, ArtifactBytes: 1}
	_, err := GenesisRetention(good)
	require.NoError(t, err)
	for _, change := range []func(*frames.Retention){
		func(r *frames.Retention) { r.OperationResultSecs-- },
		func(r *frames.Retention) { r.EventBytes = 0 },
		func(r *frames.Retention) { r.ArtifactBytes = 0 },
	} {
		r := good
		change(&r)
		_, err := GenesisRetention(r)
		require.Error(t, err)
	}
}

func TestActivationRecord(t *testing.T) {
	s := newState(t)
	cert := frames.Certificate{WitnessID: frames.WitnessID{1}, CoordinatorID: frames.CoordinatorID{2}, Activation: 4, Epoch: 5, IncarnationID: frames.IncarnationID{6}, Token: [32]byte{7}, WitnessKeyID: [32]byte{8}, IssuedAt: 1, ExpiresAt: 16}
	for rev := range 2 {
		ch, err := ActivationChange(s, cert, 99)
		require.NoError(t, err)
		require.Equal(t, ActivationRef(), ch.Ref())
		require.EqualValues(t, rev+1, ch.Record.Revision)
		var a frames.Activation
		require.NoError(t, decodeAdmin(ch.Record, frames.AdminActivation, &a))
		require.Equal(t, frames.Activation{Epoch: 5, Activation: 4, Incarnation: frames.IncarnationID{6}, WitnessID: frames.WitnessID{1}, WitnessKeyID: [32]byte{8}, ActivatedAt: 99}, a)
		require.NotContains(t, string(ch.Record.Payload), string(cert.Token[:]), "the token is not part of any record")
		s.rows[ch.Ref()] = ch.Stored
	}
}

func TestCredentialsFollowTheRegistry(t *testing.T) {
	key := func(n byte) frames.Credential {
		return frames.Credential{KeyID: frames.KeyID{n}, ScopeCeiling: frames.AllScopes, ExpiresAt: 5000}
	}
	have := map[frames.ObjectID]frames.SnapshotRecord{}
	sync := func(now uint64, registry ...frames.Credential) []Change {
		var existing []frames.SnapshotRecord
		for _, r := range have {
			existing = append(existing, r)
		}
		changes, err := CredentialChanges(existing, registry, now)
		require.NoError(t, err)
		for _, ch := range changes {
			require.Zero(t, ch.Event)
			require.True(t, IsCredential(ch.Record))
			require.EqualValues(t, have[ch.Record.ID].Revision+1, ch.Record.Revision)
			have[ch.Record.ID] = ch.Record
		}
		return changes
	}
	read := func(n byte) frames.Credential {
		var c frames.Credential
		require.NoError(t, decodeAdmin(have[CredentialRef(frames.KeyID{n}).ID], frames.AdminCredential, &c))
		return c
	}
	require.Len(t, sync(1, key(1), key(2)), 2)
	require.Empty(t, sync(2, key(2), key(1)), "nothing changed")
	narrow := key(1)
	narrow.ScopeCeiling = frames.ScopeWorkRead
	require.Len(t, sync(3, narrow, key(2)), 1)
	require.Equal(t, narrow, read(1))

	gone := sync(4, key(2))
	require.Len(t, gone, 1, "removal revokes")
	require.False(t, gone[0].Live)
	require.EqualValues(t, 4, *read(1).RevokedAt)
	require.Empty(t, sync(5, key(2)), "once")

	revoked := key(2)
	revoked.RevokedAt = ptr(uint64(6))
	require.Len(t, sync(7, revoked), 1)
	require.EqualValues(t, 6, *read(2).RevokedAt)
	require.Empty(t, sync(8), "a revoked record that leaves the registry stays as it is")

	back := sync(9, key(1), revoked)
	require.Len(t, back, 1)
	require.True(t, back[0].Live)
	require.Nil(t, read(1).RevokedAt)
	require.Len(t, have, 2, "one record per key ever loaded")
}

func TestAnnexesAreStrict(t *testing.T) {
	op := OpMeta{Digest: [32]byte{1}, Kind: 1, Epoch: 2, CompletedAt: 3, FinalSequence: 4, RetentionSecs: 5,
		Created: []frames.ObjectRef{{Kind: frames.KindObjective, ID: frames.ObjectID{1}}}}
	raw, err := op.Encode()
	require.NoError(t, err)
	back, err := DecodeOpMeta(raw)
	require.NoError(t, err)
	require.Equal(t, op, back)
	effect := Effect{
		Attempt: frames.EffectAttempt{
			ID: frames.EffectAttemptID{1}, OperationID: frames.OperationID{2}, Kind: frames.EffectKill, Payload: []byte{},
			Target: frames.EffectTarget{Tag: frames.TargetActiveBinding, Binding: frames.TerminalBindingRef{
				BindingID: frames.BindingID{3}, WorkSessionID: frames.WorkSessionID{4}, OwnerIncarnation: frames.IncarnationID{5},
			}},
		},
		Principal: frames.KeyID{6}, Activation: 7, Run: frames.RunID{8}, Mode: EffectDenied, Reason: frames.EndFailed,
	}
	for name, tt := range map[string]struct {
		value codec.Value
		into  func() codec.Value
	}{
		"operation": {&op, func() codec.Value { return new(OpMeta) }},
		"effect":    {&effect, func() codec.Value { return new(Effect) }},
		"claim":     {&Claim{frames.RunID{1}, frames.Fingerprint{2}, frames.IncarnationID{3}, true}, func() codec.Value { return new(Claim) }},
		"run": {&runMeta{frames.WorkSessionID{1}, frames.BindingID{2}, frames.EffectAttemptID{3}, frames.OperationID{4}},
			func() codec.Value { return new(runMeta) }},
		"binding": {&bindingMeta{Run: frames.RunID{1}, Last: 2, Count: 3, Gapped: true, OutputBytes: 4, Kill: frames.EffectAttemptID{5},
			Blocked: frames.SignalID{6}, Failed: frames.SignalID{7}, Spans: []span{{1, 0}, {9, 2}}, Seal: []byte{8}}, func() codec.Value { return new(bindingMeta) }},
		"signal":   {&signalMeta{frames.BindingID{1}}, func() codec.Value { return new(signalMeta) }},
		"artifact": {&artifactMeta{true, 2}, func() codec.Value { return new(artifactMeta) }},
		"runs":     {&runCounts{Runs: 2, Unfinished: 1, Pages: 3, Tail: []frames.ObjectRef{runRef(frames.RunID{4})}}, func() codec.Value { return new(runCounts) }},
		"totals":   {&totals{1}, func() codec.Value { return new(totals) }},
		"page":     {&refPage{[]frames.ObjectRef{runRef(frames.RunID{4})}}, func() codec.Value { return new(refPage) }},
		"due":      {&Due{frames.OperationID{1}, 2}, func() codec.Value { return new(Due) }},
		"used":     {&used{}, func() codec.Value { return new(used) }},
		"removals": {&removals{[]Removal{{frames.KindRun, 3}}}, func() codec.Value { return new(removals) }},
		"digest":   {&factDigest{1, [32]byte{2}}, func() codec.Value { return new(factDigest) }},
	} {
		good := image(t, tt.value)
		into := tt.into()
		require.NoError(t, decodeAnnex(name, into, good), name)
		require.Equal(t, tt.value, into, name)
		strict(t, name, good, func(b []byte) error { return decodeAnnex(name, tt.into(), b) })
	}
	strict(t, "retention", (&retentionMeta{adverts: []advert{{1, 9}, {2, 8}}}).encode(), func(b []byte) error {
		_, err := decodeRetentionMeta(b)
		return err
	})
	_, err = codec.EncodeImage(nil, &runCounts{Runs: 1, Unfinished: 2})
	require.Error(t, err)
}

// strict checks that an annex is refused in every other form.
func strict(t *testing.T, name string, good []byte, f func([]byte) error) {
	t.Helper()
	require.NoError(t, f(good), name)
	require.Error(t, f(append(append([]byte(nil), good...), 0)), "%s: a byte more", name)
	for n := range good {
		require.Error(t, f(good[:n]), "%s cut at %d", name, n)
	}
	newer := append([]byte(nil), good...)
	newer[0]++
	require.Error(t, f(newer), "%s of a newer version", name)
}

func TestDamagedRecordsAreNoRefusals(t *testing.T) {
	s := newState(t)
	_, err := s.do(create(t, 1, 1, "a"), alice)
	require.NoError(t, err)
	row := s.rows[OperationRef(frames.OperationID{1})]
	row.Annex = nil
	s.rows[OperationRef(frames.OperationID{1})] = row
	c, err := Parse(create(t, 1, 1, "a"), alice, 4096)
	require.NoError(t, err)
	_, err = Apply(s, c, Env{})
	var r *Refusal
	require.Error(t, err)
	require.NotErrorAs(t, err, &r)
	delete(s.rows, retentionRef)
	_, err = Retention(s)
	require.Error(t, err)
}
