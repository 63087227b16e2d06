package pgqueue

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestOldSnapshotsAreToldOf(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	told := make(chan SnapshotInfo, 100)
	q := newQueue(t, Options{Observer: &Observer{OldSnapshot: func(info SnapshotInfo) { told <- info }}})
	ctx := context.Background()
	config, err := pgx.ParseConfig(testDSN(t))
	require.NoError(t, err)
	config.RuntimeParams["application_name"] = "forgetful"
	conn, err := pgx.ConnectConfig(ctx, config)
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
	require.NoError(t, err)
	require.Empty(t, claim(t, q, 1))
	deadline := time.After(time.Minute)
	for {
		select {
		case info := <-told:
			require.Greater(t, info.Age, 10*time.Second)
			// Another test's session may be older still.
			if info.Application != "forgetful" {
				continue
			}
			require.EqualValues(t, conn.PgConn().PID(), info.PID)
			return
		case <-deadline:
			t.Fatal("nobody told of the snapshot")
		}
	}
}
