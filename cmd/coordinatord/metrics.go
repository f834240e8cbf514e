package main

import (
	"math"
	"strings"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/server"
	"coordinator/server/quota"
	"coordinator/server/stream"
)

// What a coordinator exposes, beside go_* and process_*. docs/metrics.md says of each what it
// means and when to worry.
var (
	metBuild = daemon.Gauge("coordinator_build_info", "What the program was made of; always 1.", "version", "revision", "goversion")
	metReady = daemon.Gauge("coordinator_ready", "1 while it serves under an authority that has not expired.")

	metLease     = daemon.Gauge("coordinator_lease_remaining_seconds", "Time until the deadline of the lease; 0 once fenced.")
	metRenewals  = daemon.Counter("coordinator_lease_renewals_total", "Renewals of the lease, by how they ended.", "outcome")
	metEpoch     = daemon.Gauge("coordinator_authority_epoch", "Authority epoch in force.")
	metActivated = daemon.Gauge("coordinator_activation_sequence", "Activation sequence in force.")

	metCommit     = daemon.Distribution("coordinator_commit_duration_seconds", "From the first decision of a batch until its replies are out.")
	metBatch      = daemon.Distribution("coordinator_commit_batch_size", "Commands and own changes that one commit decided.")
	metFlush      = daemon.Distribution("coordinator_log_flush_duration_seconds", "Flush of one commit to the log.")
	metCheckpoint = daemon.Distribution("coordinator_checkpoint_duration_seconds", "One checkpoint of state.db.")
	metBehind     = daemon.Counter("coordinator_checkpoint_waits_total", "Commits that waited because the disk was behind with a checkpoint.")
	metCommits    = daemon.Counter("coordinator_commits_total", "Commits of the store, over all its life.")
	metEvents     = daemon.Counter("coordinator_events_total", "Event sequences that were used, over the store's whole life.")
	metRefetched  = daemon.Counter("coordinator_prefetch_stale_total", "Commands that were read for again because state moved on.")
	metQueue      = daemon.Gauge("coordinator_writer_queue_depth", "What waits for the commit writer.", "queue")
	metQueueLimit = daemon.Gauge("coordinator_writer_queue_limit", "Outstanding requests that the writer admits.")
	metRecords    = daemon.Gauge("coordinator_records", "Records of the authority.", "kind")

	metConns = daemon.NewConnFamilies("coordinator_")

	metSubs        = daemon.Gauge("coordinator_subscriptions", "Subscriptions.", "state")
	metSubsOpened  = daemon.Counter("coordinator_subscriptions_opened_total", "Subscriptions that were opened.")
	metStarved     = daemon.Gauge("coordinator_subscriptions_starved", "Live subscriptions whose next event no credit covers.")
	metCredit      = daemon.Gauge("coordinator_credit_events", "Events that live subscriptions have credit for.")
	metCreditBytes = daemon.Gauge("coordinator_credit_bytes", "Bytes that live subscriptions have credit for.")
	metPending     = daemon.Gauge("coordinator_pending_events", "Visible events that are not sent, over all subscriptions.")
	metPendBytes   = daemon.Gauge("coordinator_pending_bytes", "Bytes of those events.")
	metUncounted   = daemon.Gauge("coordinator_fanout_lag_events", "Published events that the fan-out has not counted.")
	metDelivered   = daemon.Counter("coordinator_events_delivered_total", "Live events handed to connections.")
	metGaps        = daemon.Counter("coordinator_gaps_total", "GAP frames.", "reason")

	metSnapshots   = daemon.Counter("coordinator_snapshots_total", "Snapshots.", "stage")
	metSnapPages   = daemon.Counter("coordinator_snapshot_pages_total", "Pages of snapshots.")
	metSnapRecords = daemon.Counter("coordinator_snapshot_records_total", "Records in those pages.")
	metReplays     = daemon.Counter("coordinator_replays_total", "Replays.", "stage")
	metRepPages    = daemon.Counter("coordinator_replay_pages_total", "Pages of replays.")
	metRepEvents   = daemon.Counter("coordinator_replay_events_total", "Events in those pages.")
	metLeases      = daemon.Gauge("coordinator_leases_open", "Open leases.", "kind")
	metLeaseEnds   = daemon.Counter("coordinator_leases_ended_total", "Leases that the server ended.", "reason")

	metQuota      = daemon.Gauge("coordinator_quota_used", "What is held of a resource.", "resource")
	metQuotaLimit = daemon.Gauge("coordinator_quota_limit", "Most that may be held.", "resource", "level")
	metQuotaMost  = daemon.Gauge("coordinator_quota_principal_most", "Most that any one principal holds.", "resource")
	metPrincipals = daemon.Gauge("coordinator_quota_principals", "Principals that hold something.")

	metOwners     = daemon.Gauge("coordinator_owner_links", "Links to process owners.", "state")
	metOwnerUps   = daemon.Counter("coordinator_owner_link_ups_total", "Links to process owners that came up.")
	metEffects    = daemon.Gauge("coordinator_outbox_effects", "Effect attempts without an outcome.", "state")
	metOutcomes   = daemon.Counter("coordinator_outbox_outcomes_total", "Outcomes of effect attempts that were made durable.", "outcome")
	metDispatched = daemon.Counter("coordinator_outbox_dispatched_total", "Effect attempts sent to an owner.")
	metLookups    = daemon.Counter("coordinator_outbox_lookups_total", "Effect attempts whose outcome was asked for.")
	metBindings   = daemon.Gauge("coordinator_bindings_active", "Active bindings of configured owners.")
	metFacts      = daemon.Counter("coordinator_source_facts_total", "Source facts that were decided.")
	metOddFacts   = daemon.Counter("coordinator_source_facts_refused_total", "Source facts that were neither admitted nor duplicates.")

	metLogBytes   = daemon.Gauge("coordinator_log_bytes", "Files of the event log.")
	metSegments   = daemon.Gauge("coordinator_log_segments", "Segments of the event log.")
	metStateBytes = daemon.Gauge("coordinator_state_bytes", "Pages of state.db.")
	metStateFree  = daemon.Gauge("coordinator_state_free_bytes", "Pages of state.db that hold nothing.")
	metCuts       = daemon.Gauge("coordinator_cuts_open", "Cuts that hold back older versions of records.")
	metReplaying  = daemon.Gauge("coordinator_replays_holding", "Replays that hold segments of the log.")
	metFree       = daemon.Gauge("coordinator_disk_free_bytes", "What may still be written where the store is.")
	metReserve    = daemon.Gauge("coordinator_disk_reserve_bytes", "Below so much free space new work is refused.")

	metKeys    = daemon.Gauge("coordinator_registry_keys", "Workload keys that are enrolled.")
	metEmptied = daemon.Gauge("coordinator_registry_bad", "1 while workload-keys is bad and nobody is authorised.")
)

// kinds of records that a store counts.
var recordKinds = func() (all []frames.ObjectKind) {
	for k := frames.KindObjective; k <= frames.KindArtifactManifest; k++ {
		if k.Known() {
			all = append(all, k)
		}
	}
	return all
}()

// requestNames are the frames that a client may send.
var requestNames = func() map[frames.Type]string {
	all := make(map[frames.Type]string)
	for n := range 256 {
		if t := frames.Type(n); t.Known() && t.FromClient() {
			all[t] = label(t.String())
		}
	}
	return all
}()

// label is the protocol's name of something as a label's value.
func label(name string) string { return strings.ToLower(name) }

// collect puts everything of a running coordinator; of another, that it is not ready.
func collect(m *server.Monitor) func(*daemon.Scrape) {
	return func(s *daemon.Scrape) {
		s.PutBuild(metBuild)
		r, ok := m.Read()
		s.PutFlag(metReady, ok && r.Ready)
		if !ok {
			return
		}
		putAuthority(s, &r)
		putCommits(s, &r)
		metConns.Put(s, r.Conns, requestNames)
		putStreams(s, &r)
		putQuotas(s, &r)
		putOutbox(s, &r)
		putDisk(s, &r)
	}
}

func putAuthority(s *daemon.Scrape, r *server.Reading) {
	s.Put(metLease, r.Lease.Seconds())
	s.Put(metRenewals, float64(r.Renewals.Renewed), "renewed")
	s.Put(metRenewals, float64(r.Renewals.Unanswered), "unanswered")
	s.Put(metRenewals, float64(r.Renewals.Refused), "refused")
	s.Put(metEpoch, float64(r.State.Epoch))
	s.Put(metActivated, float64(r.State.Activation))
	s.Put(metKeys, float64(r.Enrolled))
	s.PutFlag(metEmptied, r.Emptied)
}

func putCommits(s *daemon.Scrape, r *server.Reading) {
	s.PutDistribution(metCommit, r.Writer.Commit.Snapshot(), daemon.Nanoseconds)
	s.PutDistribution(metBatch, r.Writer.Batch.Snapshot(), 1)
	s.PutDistribution(metFlush, r.Disk.Flush.Snapshot(), daemon.Nanoseconds)
	s.PutDistribution(metCheckpoint, r.Disk.Checkpoint.Snapshot(), daemon.Nanoseconds)
	s.Put(metBehind, float64(r.Disk.Behind.Load()))
	s.Put(metCommits, float64(r.State.Commit))
	s.Put(metEvents, float64(r.State.Head))
	s.Put(metRefetched, float64(r.Writer.Refetched.Load()))
	s.Put(metQueue, float64(r.Depth.Queued), "ready")
	s.Put(metQueue, float64(r.Depth.Stale), "stale")
	s.Put(metQueue, float64(r.Depth.Calls), "calls")
	s.Put(metQueue, float64(r.Depth.Outstanding), "outstanding")
	s.Put(metQueueLimit, float64(r.Depth.Limit))
	for _, k := range recordKinds {
		s.Put(metRecords, float64(r.State.Counts[k]), label(k.String()))
	}
}

func putStreams(s *daemon.Scrape, r *server.Reading) {
	for st, n := range r.Use.States {
		s.Put(metSubs, float64(n), stream.StateNames[st])
	}
	s.Put(metStarved, float64(r.Use.Starved))
	s.Put(metCredit, float64(r.Use.CreditEvents))
	s.Put(metCreditBytes, float64(r.Use.CreditBytes))
	s.Put(metPending, float64(r.Use.PendingEvents))
	s.Put(metPendBytes, float64(r.Use.PendingBytes))
	s.Put(metUncounted, float64(r.Use.Uncounted))
	m := r.Streams
	s.Put(metSubsOpened, float64(m.Subscriptions.Load()))
	s.Put(metDelivered, float64(m.Events.Load()))
	for reason := range m.Gaps {
		s.Put(metGaps, float64(m.Gaps[reason].Load()), label(frames.GapReason(reason).String()))
	}
	s.Put(metSnapshots, float64(m.Snapshots.Load()), "opened")
	s.Put(metSnapshots, float64(m.SnapshotsEnded.Load()), "ended")
	s.Put(metSnapPages, float64(m.SnapshotPages.Load()))
	s.Put(metSnapRecords, float64(m.SnapshotRecords.Load()))
	s.Put(metReplays, float64(m.Replays.Load()), "opened")
	s.Put(metReplays, float64(m.ReplaysEnded.Load()), "ended")
	s.Put(metRepPages, float64(m.ReplayPages.Load()))
	s.Put(metRepEvents, float64(m.ReplayEvents.Load()))
	s.Put(metLeases, float64(r.Use.Snapshots), "snapshot")
	s.Put(metLeases, float64(r.Use.Replays), "replay")
	s.Put(metLeaseEnds, float64(m.Expired.Load()), "expired")
	s.Put(metLeaseEnds, float64(m.LeasesCut.Load()), "pinned_bytes")
}

// putQuotas tells what the server holds, and the most that any principal does, without whose.
func putQuotas(s *daemon.Scrape, r *server.Reading) {
	most := make(map[quota.Resource]uint64)
	principals := make(map[quota.Principal]struct{})
	for _, u := range r.Quotas {
		if u.Level == quota.OfServer {
			s.Put(metQuota, float64(u.Held), u.Resource.Key())
			continue
		}
		most[u.Resource] = max(most[u.Resource], u.Held)
		principals[u.Principal] = struct{}{}
	}
	for _, what := range quota.Resources() {
		s.Put(metQuotaMost, float64(most[what]), what.Key())
		for _, level := range []quota.Level{quota.OfPrincipal, quota.OfServer} {
			s.Put(metQuotaLimit, float64(r.Limits[level][what]), what.Key(), level.String())
		}
	}
	s.Put(metPrincipals, float64(len(principals)))
}

func putOutbox(s *daemon.Scrape, r *server.Reading) {
	u, m := r.Outgoing, r.Outbox
	s.Put(metOwners, float64(u.Up), "up")
	s.Put(metOwners, float64(u.Owners-u.Up), "down")
	s.Put(metOwnerUps, float64(m.Links.Load()))
	s.Put(metEffects, float64(u.Ready), "ready")
	s.Put(metEffects, float64(u.Dispatched), "dispatched")
	s.Put(metEffects, float64(u.Homeless), "owner_removed")
	s.Put(metOutcomes, float64(m.Outcomes[frames.EffectSucceeded].Load()), "succeeded")
	s.Put(metOutcomes, float64(m.Outcomes[frames.EffectRejected].Load()), "rejected")
	s.Put(metOutcomes, float64(m.Outcomes[frames.EffectIndeterminate].Load()), "indeterminate")
	s.Put(metOutcomes, float64(m.Never.Load()), "never_seen")
	s.Put(metDispatched, float64(m.Dispatched.Load()))
	s.Put(metLookups, float64(m.LookedUp.Load()))
	s.Put(metBindings, float64(u.Bindings))
	s.Put(metFacts, float64(m.Facts.Load()))
	s.Put(metOddFacts, float64(m.Notable.Load()))
}

func putDisk(s *daemon.Scrape, r *server.Reading) {
	if r.StatsErr == nil {
		s.Put(metLogBytes, float64(r.Stats.LogBytes))
		s.Put(metSegments, float64(r.Stats.LogSegments))
		s.Put(metStateBytes, float64(r.Stats.StateBytes))
		s.Put(metStateFree, float64(r.Stats.FreeBytes))
		s.Put(metCuts, float64(r.Stats.OpenCuts))
		s.Put(metReplaying, float64(r.Stats.OpenReplays))
	}
	if r.Free != math.MaxUint64 { // else the file system does not say
		s.Put(metFree, float64(r.Free))
	}
	s.Put(metReserve, float64(r.Reserve))
}
