package supervisor

import (
	"errors"
	"math/rand/v2"
	"time"
)

// retryAt says when an evaluation that failed with err comes again; zero is
// never. now is the store's time: what the claim said plus what has passed since.
func (s *Settings) retryAt(item *WorkItem, err error, now time.Time) time.Time {
	delay, again := s.retryDelay(item, err)
	if !again {
		return time.Time{}
	}
	return clampInstant(now.Add(delay))
}

func (s *Settings) retryDelay(item *WorkItem, err error) (delay time.Duration, again bool) {
	if s.Retry != nil {
		own := item.Clone()
		// In a goroutine of its own, for a Goexit must not take the failure along.
		panicked := join("retry rule", func() error {
			delay, again = s.Retry(&own, err)
			return nil
		})
		if panicked == nil {
			return max(delay, 0), again
		}
	}
	if _, permanent := errors.AsType[*permanentError](err); permanent {
		return 0, false
	}
	if after, ok := errors.AsType[*retryAfterError](err); ok {
		return max(after.delay, minRetryDelay), true
	}
	delay = growingDelay(s.RequeueDelay, s.MaxRetryDelay, item.Attempt)
	if item.Attempt > 0 {
		// Jitter spreads what failed together; the first retry is exact, so that
		// a single failure costs what the settings say.
		delay -= rand.N(delay/10 + 1)
	}
	return max(delay, minRetryDelay), true
}

// growingDelay is first, doubled with each attempt, up to most.
func growingDelay(first, most time.Duration, attempts int) time.Duration {
	delay := min(first, most)
	for range attempts {
		if delay > most/2 {
			return most
		}
		delay *= 2
	}
	return delay
}
