package sqlitequeue

import (
	"math"
	"sync"
	"time"
)

// clock is the store's clock: the host's, in UTC and microseconds, made
// strictly increasing, so that two changes of one process never share an
// instant and the order of due times is the order of the changes.
type clock struct {
	mu sync.Mutex
	// source is time.Now but in tests.
	source func() time.Time
	read   time.Time
	last   instant
}

func newClock() *clock { return &clock{source: time.Now, last: never} }

// now returns an instant later than any before it. While the host's clock
// stands behind what was given out, after it was set back, the queue's goes on
// by the monotonic clock.
func (c *clock) now() instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	read := c.source()
	next := instant(read.UnixMicro())
	if next <= c.last {
		next = c.last + max(1, instant(read.Sub(c.read)/time.Microsecond))
	}
	c.read, c.last = read, next
	return next
}

// instant is a point in time as it is stored: microseconds since 1970 in UTC,
// which reach far beyond the calendar that the library allows.
type instant int64

// never is no instant: NULL in the database, the zero [time.Time] outside.
const never instant = math.MinInt64

// instantOf rounds up to the microsecond, so that nothing falls due before the
// instant that was asked for.
func instantOf(t time.Time) instant {
	if t.IsZero() {
		return never
	}
	at := instant(t.UnixMicro())
	if t.Nanosecond()%1000 != 0 {
		at++
	}
	return at
}

func (i instant) time() time.Time {
	if i == never {
		return time.Time{}
	}
	return time.UnixMicro(int64(i)).UTC()
}

// value is the instant as an argument of a statement.
func (i instant) value() any {
	if i == never {
		return nil
	}
	return int64(i)
}

// earlier returns the earlier of two instants, never being none.
func earlier(a, b instant) instant {
	if a == never || (b != never && b < a) {
		return b
	}
	return a
}

// later returns the later of two instants, never being none.
func later(a, b instant) instant { return max(a, b) }

// endOfCalendar is the last instant that the library lets anything fall due.
const endOfCalendar instant = 253402300799999999

// after returns the instant d after i, rounded up, or the end of the calendar.
func (i instant) after(d time.Duration) instant {
	micros := instant(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		micros++
	}
	return min(i+micros, endOfCalendar)
}
