// Package console serves the web console of one coordinator on this machine: the page that the
// program carries within it, what a [client.Replica] shows as it changes, and commands.
//
// It is an ordinary paired client with the scopes of its key. What it may do and see, the
// coordinator decides; this package only keeps others on this machine, and other pages in
// the same browser, from using it (see guard.go).
//
// # Who is let in
//
// The address that is printed ends in a token that is good once: it is traded for a cookie
// (HttpOnly, SameSite=Strict) and a redirect to "/". The page and its assets hold nothing
// secret and are given to anybody; every /api/ path wants the cookie, a Host that names this
// machine, and Origin and Sec-Fetch-Site (where the browser sends them) of the page itself. A
// POST must have Origin or Sec-Fetch-Site, and Content-Type application/json.
//
// # Conventions
//
// JSON with snake_case names. Ids are hex as coordctl prints them, times RFC 3339 in UTC with
// milliseconds. Event sequences, revisions, epochs, activations, offsets and byte counts are
// decimal strings, since a browser's numbers end at 2^53. A member that says nothing is left
// out or null. An answer other than 2xx is
//
//	{"error": {"code": "NOT_FOUND", "message": "…", "next": "…"}}
//
// with a protocol code where there is one; this package's own codes are UNAUTHENTICATED (401:
// no cookie, or an old one), FORBIDDEN (403: another site, another host name), NOT_FOUND (404),
// BAD_REQUEST (400), METHOD_NOT_ALLOWED (405), TOO_LARGE (413), UNSUPPORTED_MEDIA_TYPE (415),
// BUSY (503, with Retry-After) and UNAVAILABLE (502: the owner, the coordinator or the daemon's
// metrics did not answer). An EventSource cannot see a status: before the first connection,
// and after it failed, GET /api/session tells why.
//
// # Paths
//
//	GET  /?token=T       trade the token in; 403 with a page that says what to do when it is used or wrong
//	GET  /, /assets/*    the page
//	GET  /api/session    who this is, see below
//	GET  /api/live       server-sent events
//	GET  /api/objective/{id}
//	GET  /api/run/{id}
//	GET  /api/run/{id}/timeline
//	GET  /api/run/{id}/output/{binding_id}?offset=N&limit=N
//	POST /api/run/{id}/output/{binding_id}/verify   body {}
//	GET  /api/signal/{id}
//	GET  /api/operation/{id}
//	GET  /api/authority
//	GET  /api/daemon
//	POST /api/action
//
// # Session
//
//	{"name": "local",                      the context's name
//	 "address": "/…/coordinator.sock",     or host:port
//	 "coordinator_id", "key_id",
//	 "version": "…"}                       of this coordctl
//
// # Live
//
// Every event has an id, which rises by one per connection. The first after each (re)connection
// is reset; whoever is too slow is cut off and gets a reset when it comes back.
//
//	reset     {"state": STATE, "signals": [ROW…], "objectives": [ROW…], "runs": [ROW…], "operations": [ROW…], "activity": [EVENT…]}
//	rows      {"state": STATE, "signals": [ROW…], …, "gone": [{"table": "runs", "id": "…"}]}
//	          rows that are new or have changed, whole; and ids that are no longer in a table
//	activity  {"events": [EVENT…]}         newest last; keep the last 1,000
//	state     STATE                        when it changes, and each second
//
// Rows and their order in reset are those of package overview; each has "id".
//
//	STATE  is [overview.State] and "scope": what this key may do, of all that it asked for. With
//	       "stale": true, which it is in every phase but Current, do not believe the screen.
//	       The certificate of the authority is at /api/authority.
//	EVENT  is [overview.Activity]
//
// # Details
//
// They are of the view as it now stands, at once; what the event log says of a run, and its
// output, take longer and are asked for by themselves.
//
//	/api/objective/{id}
//	    {"objective": {"id", "revision", "state", "title", "document_schema": 1, "document": any or "document_base64": "…"},
//	     "runs": [ROW…], "operations": [ROW…]}
//	/api/run/{id}
//	    {"run": {"id", "revision", "objective_id", "objective_title", "attempt": 1, "state", "exit": EXIT},
//	     "sessions":  [{"id", "revision", "state", "active_binding"}],
//	     "bindings":  [{"id", "revision", "work_session_id", "state", "end_reason", "owner", "owner_name", "owner_incarnation", "resource_id", "resource_host"}],
//	     "artifacts": [{"id", "revision", "work_session_id", "latest_revision", "manifest": {"revision", "schema": 1, "bytes": "12", "document": any or "document_base64"}}],
//	     "evidence":  [{"binding_id", "revision", "work_session_id", "artifact_id", "seal_sha256"}],
//	     "outputs":   [{"stream": "BINDING_ID", "live": true}],
//	     "signals": [ROW…], "operations": [ROW…]}
//	    EXIT {"known": true, "status": 3 or "signal": 9, "text": "exit status 3"}; absent while the process runs
//	/api/run/{id}/timeline         from the event log; takes up to 20 s where that is long
//	    {"events": [EVENT…],                  without received_at: events bear no time of day
//	     "omitted": 0,                        earlier ones that were left out, above 20,000
//	     "removed_events_through": "0",       above 0: retention has removed events up to there
//	     "streams": [{"stream": "BINDING_ID", "facts": "12", "first_fact": "1", "last_fact": "12", "gaps": 0,
//	                  "output_bytes": "4096", "output_ranges": 3, "closed": true, "sealed": true, "findings": [FINDING…]}]}
//	    FINDING {"what": "seal", "verdict": "agrees"|"DIFFERS"|"not checked", "detail": "…"}
//	/api/run/{id}/output/{binding_id}?offset=0&limit=65536
//	    {"offset": "0", "bytes": "base64", "next_offset": "4096", "end": true, "live": false,
//	     "digest": "agrees"|"DIFFERS"|"not checked", "detail": "…",
//	     "ranges": [{"offset": "0", "length": "4096", "verdict": "agrees"}]}
//	    limit is at most 65536. end: nothing is stored behind next_offset now; with live more may come.
//	    digest is the worst verdict of the admitted digests that cover bytes of this answer.
//	/api/run/{id}/output/{binding_id}/verify   POST {}; takes up to 30 s
//	    {"verified": true, "bytes": "4096", "agreed_bytes": "4096", "agreed_digests": 3,
//	     "differ": [{"offset", "length"}], "findings": [FINDING…]}
//	/api/signal/{id}
//	    {"signal": {"id", "revision", "kind", "state", "message", "work_session_id", "run_id", "objective_id"}}
//	/api/operation/{id}            asked of the coordinator when the view does not have it
//	    {"operation": {"id", "state", "text", "principal_key_id", "object": {"kind", "id"}, "run_id", "code", "message", "reason",
//	                   "completed_event_sequence", "unresolved": true}}
//	    unresolved: this client began it and knows no end of it
//	/api/authority
//	    {"authority": {"epoch", "activation", "incarnation_id"},
//	     "certificate": {"epoch", "activation", "expires_at": TIME, "remaining_ms": 12000},   absent without a connection
//	     "grant": {"expires_at": TIME, "scope": […]},
//	     "pins": {"coordinator_id", "authority", "witness_id", "witness_public_key", "address"}, "key_id": "sha256:…",
//	     "epochs": [{"epoch", "activation", "incarnation_id", "seen_at": TIME}],   met since the console began, newest first
//	     "event_rate": [{"at": TIME, "events": 12}]}   events applied in each of the last seconds, at most 600, oldest first
//	/api/daemon
//	    {"available": false, "why": "…", "next": "…"} or
//	    {"available": true, "at": TIME, "ready": true, "lease_remaining_seconds": 11.5,
//	     "quotas": [{"resource": "operations", "used": 12, "principal_most": 12, "principal_limit": 100, "server_limit": 1000}],
//	     "commit": LATENCY, "flush": LATENCY, "gauges": {"coordinator_commits_total": 12, …}}
//	    LATENCY {"count": 12, "mean_seconds", "p50_seconds", "p99_seconds", "buckets": [{"le": 0.001, "count": 10}]}
//	    over the life of the daemon; counts are cumulative, the last le is null
//
// # Actions
//
//	POST /api/action  {"action": "cancel", "id": "…", "revision": "3", "operation_id": "…", "note": "…"}
//
// action is acknowledge or suppress (a signal; note is optional), cancel, pause or resume (a run),
// complete-objective, cancel-objective or archive (an objective; the last removes it and all
// beneath it for good). revision is that of the row that the person saw;
// with it the command is refused with REVISION_CONFLICT when the object has changed since, and an
// action on an objective must have it. operation_id is 32 hex digits that the page chose from
// crypto.getRandomValues before it asks; without it the console chooses one. The same request
// under the same operation_id is the same command, which runs once: so it is sent again when
// the answer was lost. The answer is 200 whatever became of the command:
//
//	{"operation_id": "…", "outcome": "COMMITTED", "text": "…", "code": "…", "message": "…", "next": "…", "retry": "none"}
//
//	COMMITTED      it is done
//	PENDING        it is admitted, and takes effect at the owner; its row in operations tells the end
//	REFUSED        it was not done and will not be: code and message say why
//	NOT_SENT       it was not done: the coordinator was not reached
//	INDETERMINATE  it may have been done, or not
//
// retry is "same" (send the same request with the same operation_id: safe, and finds out), "new"
// (only a new operation_id makes sense, once the cause is gone) or "none". 4xx is for what is no
// command: a bad id, an unknown action, an operation_id that was used for another request
// (OPERATION_CONFLICT, 409).
package console
