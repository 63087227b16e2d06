package pgqueue

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPackedTexts(t *testing.T) {
	digest := sha256Prefix + strings.Repeat("0123456789abcdef", 4)
	for _, test := range []struct {
		text string
		size int
	}{
		{"", 0},
		{"a", 1},
		{"plain", 5},
		{"0123456", 7},
		{"01234567", 6},
		{"012345678", 7},
		{digest, 34},
		{strings.ToUpper(digest), 59},
		{digest + " ", 42},
		{"sha256:", 7},
		{"transition:00112233445566778899aabbccddeeff:12", 32},
		{strings.Repeat("ab", 1000), 1008},
		{"häß 00112233 \xff", len("häß ") + 6 + 2},
	} {
		packed := appendPacked(nil, test.text)
		require.Len(t, packed, test.size, "%q", test.text)
		text, ok := unpacked(packed)
		require.True(t, ok)
		require.Equal(t, test.text, text)
	}
	for _, broken := range []string{"\x00", "a\x00", "\x00\x02a", "\x00\x00", "\x00\x00short"} {
		_, ok := unpacked([]byte(broken))
		require.False(t, ok, "%q", broken)
	}
}

func FuzzPackedTexts(f *testing.F) {
	f.Add("sha256:" + strings.Repeat("0f", 32))
	f.Add("transition:00112233445566778899aabbccddeeff:12")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = unpacked([]byte(text))
		if strings.Contains(text, "\x00") {
			return
		}
		again, ok := unpacked(appendPacked(nil, text))
		require.True(t, ok)
		require.Equal(t, text, again)
	})
}
