package pgqueue

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// idlePool is a pool that connects to nothing.
func idlePool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return newPool(t, "postgres://nobody@127.0.0.1:1/nothing")
}

func TestNewRefuses(t *testing.T) {
	pool := idlePool(t)
	for _, test := range []struct {
		name    string
		options Options
		texts   []string
	}{
		{"long schema", Options{Schema: strings.Repeat("s", 64)}, []string{"Schema has 64 bytes, more than 63"}},
		{"schema that is no text", Options{Schema: "a\xff"}, []string{"Schema is not valid UTF-8"}},
		{"schema with NUL", Options{Schema: "a\x00b"}, []string{"Schema holds a NUL character"}},
		{"few committers", Options{Committers: -1}, []string{"Committers is -1, must be from 1 to 64"}},
		{"many committers", Options{Committers: 65}, []string{"Committers is 65"}},
		{"small batch", Options{BatchSize: -1}, []string{"BatchSize is -1, must be from 1 to 4096"}},
		{"large batch", Options{BatchSize: 4097}, []string{"BatchSize is 4097"}},
		{"negative interval", Options{PollInterval: -time.Second}, []string{"PollInterval is -1s, must be at least 10ms"}},
		{"short interval", Options{PollInterval: 9 * time.Millisecond}, []string{"PollInterval is 9ms"}},
		{"listening unwanted", Options{DisableListen: true, Listen: new(pgx.ConnConfig)}, []string{"Listen is set, but DisableListen is true"}},
		{"listening without a config", Options{Listen: new(pgx.ConnConfig)}, []string{"Listen", "pgx.ParseConfig"}},
		{"all at once", Options{Committers: 100, BatchSize: -5, PollInterval: 1}, []string{"Committers is 100", "BatchSize is -5", "PollInterval is 1ns"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			q, err := New(pool, test.options)
			require.Nil(t, q)
			for _, text := range test.texts {
				require.ErrorContains(t, err, text)
			}
		})
	}
	q, err := New(nil, Options{Committers: 100})
	require.Nil(t, q)
	require.ErrorContains(t, err, "pool is nil")
	require.ErrorContains(t, err, "Committers is 100")
}

func TestNewAccepts(t *testing.T) {
	pool := idlePool(t)
	for name, options := range map[string]Options{
		"zero":     {},
		"least":    {Schema: "s", Committers: 1, BatchSize: 1, PollInterval: 10 * time.Millisecond},
		"most":     {Schema: strings.Repeat("s", 63), Committers: 64, BatchSize: 4096, PollInterval: time.Hour},
		"any name": {Schema: `"; drop schema public; --`},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := New(pool, options)
			require.NoError(t, err)
			q.Close()
		})
	}
}

// Every option does what it says.
func TestOptionsAreUsed(t *testing.T) {
	ctx := context.Background()
	dsn := testDSN(t)
	q := open(t, dsn, newSchema(t, dsn), Options{
		Committers: 3, BatchSize: 7, DisableListen: true, PollInterval: 50 * time.Millisecond,
		Admit: func(_ context.Context, item *supervisor.WorkItem) error {
			if item.ID == "refused" {
				return supervisor.ErrNotAdmitted
			}
			return nil
		},
	})
	require.EqualValues(t, 8, q.own.Config().MaxConns)
	require.EqualValues(t, 1, q.renewing.Config().MaxConns)
	for _, id := range []string{"admitted", "refused"} {
		start(t, q, id)
	}
	for _, item := range claim(t, q, 2) {
		err := q.AdmitEvaluation(ctx, &item)
		if item.ID == "refused" {
			require.ErrorIs(t, err, supervisor.ErrNotAdmitted)
		} else {
			require.NoError(t, err)
		}
	}
	// Without a listener what another process does is found by polling.
	other := open(t, dsn, q.options.Schema, Options{DisableListen: true})
	woken := make(chan error, 1)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	go func() { woken <- q.WaitDue(ctx, nil) }()
	start(t, other, "new")
	require.NoError(t, <-woken)
	q.waits.mu.Lock()
	require.False(t, q.waits.listening)
	q.waits.mu.Unlock()
}

func TestClosedQueue(t *testing.T) {
	ctx := context.Background()
	q := newQueue(t, Options{})
	start(t, q, "a")
	item := claimOne(t, q)
	waiting := make(chan error, 1)
	go func() { waiting <- q.WaitDue(ctx, []string{"other"}) }()
	require.Eventually(t, func() bool {
		q.waits.mu.Lock()
		defer q.waits.mu.Unlock()
		return len(q.waits.waiting) == 1
	}, 10*time.Second, time.Millisecond)
	q.Close()
	q.Close()
	require.ErrorIs(t, <-waiting, ErrClosed)
	_, err := q.ClaimDue(ctx, request(1))
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, commit(t, q, &item, complete), ErrClosed)
	require.ErrorIs(t, q.Renew(ctx, leaseOf(&item, testLease)), ErrClosed)
	require.ErrorIs(t, q.Release(ctx, &item, "closed"), ErrClosed)
	require.ErrorIs(t, q.WaitDue(ctx, nil), ErrClosed)
	require.ErrorIs(t, q.Deliver(ctx, testTenant, "a", note("w"), zero), ErrClosed)
	_, err = q.Start(ctx, instance(t, "b"), zero)
	require.ErrorIs(t, err, ErrClosed)
	_, err = q.Get(ctx, testTenant, "a")
	require.ErrorIs(t, err, ErrClosed)
	_, err = q.Prune(ctx, time.Now())
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, q.Migrate(ctx), ErrClosed)
}
