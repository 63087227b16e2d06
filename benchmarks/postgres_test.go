package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseProcess(t *testing.T) {
	p, ok := parseProcess("2952 (a) b (c)) S 17 2952 2952 0 -1 4194560 10 20 30 40 150 50 300 100 20 0 1 0 99")
	require.True(t, ok)
	require.Equal(t, process{name: "a) b (c)", parent: 17, own: 2, ended: 4}, p)
	for _, bad := range []string{"", "1 postgres S 1", "1 (postgres) S 1 2 3", "1 (p) S x 2 2 0 -1 4 1 2 3 4 5 6 7 8 9"} {
		_, ok := parseProcess(bad)
		require.False(t, ok, bad)
	}
}
