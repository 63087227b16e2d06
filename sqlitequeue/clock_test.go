package sqlitequeue

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClockNeverGoesBack(t *testing.T) {
	wall := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	c := newClock()
	c.source = func() time.Time { return wall }
	last := c.now()
	require.Equal(t, wall, last.time())
	for _, jump := range []time.Duration{0, 500 * time.Nanosecond, -time.Hour, -time.Nanosecond, time.Microsecond, 3 * time.Hour} {
		wall = wall.Add(jump)
		for range 3 {
			now := c.now()
			require.Greater(t, now, last, "after a jump of %v", jump)
			last = now
		}
	}
	require.WithinDuration(t, wall, last.time(), time.Millisecond, "it follows the host again")
}

// While the host's clock stands behind what was given out, time goes on.
func TestClockGoesOnByTheMonotonicClock(t *testing.T) {
	c := newClock()
	ahead := instant(time.Now().Add(time.Hour).UnixMicro())
	c.now()
	c.last = ahead
	time.Sleep(20 * time.Millisecond)
	gone := time.Duration(c.now()-ahead) * time.Microsecond
	require.GreaterOrEqual(t, gone, 20*time.Millisecond)
	require.Less(t, gone, 10*time.Second)
}

func TestInstants(t *testing.T) {
	for _, test := range []struct {
		at   time.Time
		want string // after storing
	}{
		{time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC), "0001-01-01T00:00:00.000001Z"},
		{time.Date(1969, 12, 31, 23, 59, 59, 999_999_000, time.UTC), "1969-12-31T23:59:59.999999Z"},
		{time.Date(2026, 6, 1, 12, 0, 0, 123_456_001, time.UTC), "2026-06-01T12:00:00.123457Z"},
		{time.Date(2026, 6, 1, 14, 0, 0, 0, time.FixedZone("", 7200)), "2026-06-01T12:00:00Z"},
		{time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC), "9999-12-31T23:59:59.999999Z"},
	} {
		require.Equal(t, test.want, instantOf(test.at).time().Format(time.RFC3339Nano))
	}
	require.Equal(t, never, instantOf(time.Time{}))
	require.True(t, never.time().IsZero())
	require.Nil(t, never.value())
	require.Equal(t, endOfCalendar, instantOf(time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)))
	require.Equal(t, instant(8), instant(7).after(time.Nanosecond), "rounded up")
	require.Equal(t, endOfCalendar, (endOfCalendar - 5).after(math.MaxInt64))
	require.Equal(t, instant(1), earlier(never, 1))
	require.Equal(t, instant(1), earlier(2, 1))
	require.Equal(t, instant(1), earlier(1, never))
	require.Equal(t, instant(2), later(2, never))
}
