package sqlitequeue

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// firstVersion makes a file as the first version of the schema left it, with two
// instances, the second of which was cancelled, and their intents.
func firstVersion(t *testing.T, path string) {
	t.Helper()
	db := (&faultyStore{path: path}).pool()
	defer func() { require.NoError(t, db.Close()) }()
	run := func(text string, args ...any) {
		_, err := db.ExecContext(t.Context(), text, args...)
		require.NoError(t, err, text)
	}
	run(createSchemaTable)
	for _, statement := range migrations[0] {
		run(statement)
	}
	run(insertSchemaVersion, 1, 0)
	const at = 1_700_000_000_000_000
	run(`INSERT INTO supervisor_tenants (key, tenant_id, epoch) VALUES (3, 'acme', 2)`)
	run(`INSERT INTO supervisor_lanes (key, tenant, spec_id) VALUES (5, 3, 'spec')`)
	for n, id := range []string{"kept", "cancelled"} {
		run(`INSERT INTO supervisor_instances (key, tenant_id, id, run_id, subject_id, spec_id, definition_id, workflow_revision,
			workflow_digest, profile_id, profile_revision, profile_digest, kernel_abi, capability_pins, config)
			VALUES (?, 'acme', ?, '0b8dd3ee-4e3b-4a5c-9a35-3d3f4a8f3c11', 'system', 'spec', 'spec', 1, 'code:spec@1', 'default', 1, 'd', '1',
			'[{"id":"pay","contract_version":"1","content_digest":"d"}]', '{}')`, 10+n, id)
		run(`INSERT INTO supervisor_records (key, tenant, lane, version, due_at, state_version, delivery_hash, lease_version, lease_kept,
			lease_tenant_epoch, lease_instance_epoch, status, created_at, cancel_requested, paused, instance_epoch, attempt,
			triggered, matched, succeeded, action_terminal, raised, wakeups, beside)
			VALUES (?, 3, 5, 1, ?, 1, 0, 1, 0, 2, 0, 0, ?, ?, 0, ?, 0, 0, 0, 0, 0, 0, 0, 0)`, 10+n, int64(at), int64(at), n, n)
		for seq, pin := range []string{"pay", "mail", "pay"} {
			run(`INSERT INTO supervisor_intents (instance, id, seq, state, capability_id, capability_contract, capability_digest,
				idempotency_key, effect, retry_class, input, tenant_epoch, instance_epoch, resource_epoch, resource_id,
				lease_epoch, action_epoch, deadline, reservation_id, reservation_token, made_at, created_at)
				VALUES (?, ?, ?, 'prepared', ?, '1', 'd', 'key', 'funds', 'none', '{"n": 9007199254740993}', 2, 0, 4, 'res', 1, 0, ?, 'r', 7, ?, ?)`,
				10+n, fmt.Sprint("i", seq), seq, pin, int64(4_000_000_000_000_000), int64(at-1), int64(at))
		}
	}
}

// What was stored by the version before is dispatched like all else, except what
// was cancelled: that is withdrawn.
func TestMigrateIntents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	firstVersion(t, path)
	q := openFile(t, path, Options{})
	require.Equal(t, dump(t, open(t, Options{}).DB()), dump(t, q.DB()))

	for record, err := range q.ListIntents(t.Context(), supervisor.IntentFilter{}) {
		require.NoError(t, err)
		require.Equal(t, supervisor.ActionPrepared, record.Intent.State)
		require.Equal(t, time.UnixMicro(1_700_000_000_000_000).UTC(), record.DueAt)
	}
	works, err := q.ClaimIntents(t.Context(), supervisor.IntentClaimRequest{WorkerID: "d", LeaseDuration: time.Minute, Limit: 10})
	require.NoError(t, err)
	require.Equal(t, []string{"i0", "i1", "i2"}, workIDs(works))
	require.Equal(t, supervisor.ActionIntent{
		ID: "i1", TenantID: "acme", InstanceID: "kept", RunID: "0b8dd3ee-4e3b-4a5c-9a35-3d3f4a8f3c11",
		Capability:     supervisor.CapabilityPin{ID: "mail", ContractVersion: "1", ContentDigest: "d"},
		IdempotencyKey: "key", State: supervisor.ActionPrepared, Input: json.RawMessage(`{"n": 9007199254740993}`),
		Effect: supervisor.EffectFunds, RetryClass: supervisor.IdempotencyNone,
		ControlEpochs: supervisor.ControlEpochs{Tenant: 2, Resource: 4}, ResourceScopeID: "res", LeaseEpoch: 1,
		Deadline:    time.UnixMicro(4_000_000_000_000_000).UTC(),
		Reservation: &supervisor.ResourceReservationRef{ID: "r", FencingToken: 7}, CreatedAt: time.UnixMicro(1_699_999_999_999_999).UTC(),
	}, works[1].Intent)
	for n := range works {
		handOff(t, q, works[n])
	}
	for record, err := range q.ListIntents(t.Context(), supervisor.IntentFilter{TenantID: "acme", InstanceID: "cancelled"}) {
		require.NoError(t, err)
		require.Equal(t, supervisor.ActionRejected, record.Intent.State)
		require.Equal(t, supervisor.CauseStaleEpoch, record.Cause)
	}
	snapshot, err := q.Get(t.Context(), "acme", "cancelled")
	require.NoError(t, err)
	require.Equal(t, 3, snapshot.PendingWakeups)
}

// A step from the version before leaves nothing of itself behind when it is
// interrupted.
func TestMigrateIntentsInterrupted(t *testing.T) {
	whole := dump(t, open(t, Options{}).DB())
	for n := 1; ; n++ {
		path := filepath.Join(t.TempDir(), "queue.db")
		firstVersion(t, path)
		store := &faultyStore{path: path}
		disarm := store.failWrite(n)
		store.everything = true
		q, err := tryOpen(t.Context(), t, store, Options{})
		reached := disarm()
		if reached {
			require.ErrorIs(t, err, errDiskFull, "write %d", n)
			q, err = tryOpen(t.Context(), t, store, Options{})
		}
		require.NoError(t, err)
		require.Equal(t, whole, dump(t, q.DB()))
		require.Len(t, workIDs(claimIntents(t, q, 10)), 3)
		require.NoError(t, q.Close())
		if !reached {
			require.Greater(t, n, 8)
			return
		}
	}
}
