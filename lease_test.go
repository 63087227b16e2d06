package supervisor

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// scriptHolder is a lease holder that records what the keeper does.
type scriptHolder struct {
	lease heldLease
	renew func(ctx context.Context) error // nil: succeed at once

	mu      sync.Mutex
	renewed int
	failed  []error
	calls   mostAtOnce
}

func (h *scriptHolder) renewLease(ctx context.Context) error {
	defer h.calls.enter()()
	if h.renew != nil {
		return h.renew(ctx)
	}
	return nil
}

func (h *scriptHolder) leaseRenewed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.renewed++
}

func (h *scriptHolder) leaseFailed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = append(h.failed, err)
}

// failures returns what the keeper reported so far.
func (h *scriptHolder) failures() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.failed)
}

// testKeeper returns a keeper of leases of three seconds, and what ends it.
func testKeeper(t *testing.T) (k *keeper, end func()) {
	t.Helper()
	settings, err := leaseOf(3 * time.Second).resolved()
	require.NoError(t, err)
	k = new(keeper)
	work := new(sync.WaitGroup)
	k.begin(t.Context(), &settings, work)
	return k, func() {
		k.close()
		work.Wait()
	}
}

func TestLeaseIsTakenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, end := testKeeper(t)
		defer end()
		var holder scriptHolder
		k.hold(&holder.lease, &holder, time.Now())
		var taken sync.WaitGroup
		wins := make(chan bool, 20)
		for range cap(wins) {
			taken.Go(func() { wins <- k.take(&holder.lease) })
		}
		taken.Wait()
		won := 0
		for range cap(wins) {
			if <-wins {
				won++
			}
		}
		require.Equal(t, 1, won)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, holder.renewed, "no renewal begins afterwards")
		require.Empty(t, holder.failed)
	})
}

// A lease that failed is its holder's to settle, nobody else's.
func TestFailedLeaseCannotBeTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, end := testKeeper(t)
		defer end()
		holder := scriptHolder{renew: func(context.Context) error { return errPlanned }}
		k.hold(&holder.lease, &holder, time.Now())
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		require.False(t, k.take(&holder.lease))
		require.Equal(t, []error{errPlanned}, holder.failures())
		time.Sleep(time.Minute)
		require.Len(t, holder.failures(), 1)
	})
}

// An idle keeper has no timer: a supervisor that holds nothing costs nothing.
func TestKeeperWithoutLeasesHasNoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, end := testKeeper(t)
		defer end()
		var holders [10]scriptHolder
		for n := range holders {
			k.hold(&holders[n].lease, &holders[n], time.Now())
		}
		for n := range holders {
			require.True(t, k.take(&holders[n].lease))
		}
		time.Sleep(time.Minute)
		k.mu.Lock()
		defer k.mu.Unlock()
		require.Empty(t, k.due)
		require.False(t, k.armed)
	})
}

// Leases with every kind of renewal come and go at random: at most one call of
// each is in flight, one that is taken is left alone, and one is taken or has
// failed, never both.
func TestKeeperUnderRandomLoad(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		k, end := testKeeper(t)
		random := rand.New(rand.NewPCG(seed, 0))
		var users sync.WaitGroup
		for range 200 {
			kind, latency := random.IntN(5), time.Duration(random.IntN(2500))*time.Millisecond
			begin, hold := time.Duration(random.IntN(5000))*time.Millisecond, time.Duration(random.IntN(20000))*time.Millisecond
			users.Go(func() {
				time.Sleep(begin)
				calls := 0
				holder := &scriptHolder{renew: func(ctx context.Context) error {
					calls++
					switch {
					case kind == 0:
						time.Sleep(latency) // ignores its context
						return nil
					case kind == 1:
						<-ctx.Done()
						return ctx.Err()
					case kind == 2 && calls%2 == 1:
						return ErrUnavailable
					case kind == 3 && calls > 3:
						return errPlanned
					}
					return nil
				}}
				k.hold(&holder.lease, holder, time.Now())
				time.Sleep(hold)
				took := k.take(&holder.lease)
				holder.mu.Lock()
				failed, renewed := len(holder.failed), holder.renewed
				holder.mu.Unlock()
				time.Sleep(10 * time.Second)
				holder.mu.Lock()
				defer holder.mu.Unlock()
				switch {
				case took && len(holder.failed) > 0:
					t.Error("a lease was taken and failed")
				case took && holder.renewed != renewed:
					t.Error("a lease was renewed after it was taken")
				case !took && failed+len(holder.failed) == 0:
					t.Error("a lease could not be taken and has not failed")
				case len(holder.failed) > 1:
					t.Error("a lease failed twice")
				case holder.calls.most.Load() > 1:
					t.Error("renewals overlapped")
				}
			})
		}
		users.Wait()
		end()
	})
}

func TestUnconfirmedLeaseIsALostOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, end := testKeeper(t)
		defer end()
		unavailable := errors.Join(ErrUnavailable, errPlanned)
		holder := scriptHolder{renew: func(context.Context) error { return unavailable }}
		k.hold(&holder.lease, &holder, time.Now())
		time.Sleep(3*time.Second - 1)
		synctest.Wait()
		require.Empty(t, holder.failures())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Len(t, holder.failures(), 1)
		require.ErrorIs(t, holder.failures()[0], ErrLeaseLost)
		require.ErrorIs(t, holder.failures()[0], errPlanned)
	})
}
