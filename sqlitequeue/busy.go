package sqlitequeue

import (
	"context"
	"math/rand/v2"
	"time"
)

// Waiting for a lock that another process holds: locks are held for
// milliseconds, so that the first looks are close together; looking costs some
// ten microseconds.
const (
	firstBusyDelay = 100 * time.Microsecond
	mostBusyDelay  = 2 * time.Millisecond
)

// whileBusy repeats f while it is refused for a lock, until ctx ends. The error
// of ctx, not that of the lock, is then returned.
func whileBusy(ctx context.Context, isBusy func(error) bool, f func() error) error {
	for delay := firstBusyDelay; ; delay = min(2*delay, mostBusyDelay) {
		err := f()
		if err == nil || !isBusy(err) {
			return err
		}
		if err := pause(ctx, delay); err != nil {
			return err
		}
	}
}

// pause waits for about as long as delay, so that those who wait for one lock
// do not look in step; it returns the error of a context that ends meanwhile.
func pause(ctx context.Context, delay time.Duration) error {
	timer := time.NewTimer(delay/2 + rand.N(delay))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
