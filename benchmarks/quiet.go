package main

import (
	"os"
	"strconv"
	"strings"
)

// others is the share of the machine that neither this process nor the server
// used during a measurement: how much it was disturbed.
const others = "others_share"

// busySeconds returns the processor time that all cores together have worked,
// and whether this system tells.
func busySeconds() (seconds float64, ok bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	return parseBusy(string(text))
}

// parseBusy adds what the first line of /proc/stat calls user, nice, system,
// interrupts (hard and soft) and stolen.
func parseBusy(text string) (seconds float64, ok bool) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, false
	}
	for _, n := range []int{1, 2, 3, 6, 7, 8} {
		ticks, err := strconv.ParseFloat(fields[n], 64)
		if err != nil {
			return 0, false
		}
		seconds += ticks / ticksPerSecond
	}
	return seconds, true
}

// calmest runs a pair of measurements until others have disturbed neither by
// more than a share of the machine, some times at most, and returns the least
// disturbed pair.
func calmest(most float64, times int, pair func() (reference, values map[string]float64, err error)) (reference, values map[string]float64, err error) {
	least := 0.0
	for n := range max(times, 1) {
		r, v, err := pair()
		if err != nil {
			return nil, nil, err
		}
		disturbed := max(r[others], v[others])
		if n == 0 || disturbed < least {
			reference, values, least = r, v, disturbed
		}
		if least <= most {
			break
		}
	}
	return reference, values, nil
}
