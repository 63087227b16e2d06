package pgqueue

import (
	"bytes"
	"encoding/hex"
)

// Digests and delivery keys, three to an event, are mostly hexadecimal digits.
// They are stored as bytes, each run of digits by half its length: behind a NUL,
// which no text holds, stand the number of bytes and the bytes. The number 0
// stands for the bytes of a whole SHA-256 digest with its prefix.

const (
	sha256Prefix = "sha256:"
	sha256Digits = 64
	// shortestRun is the least number of digits that are worth a run.
	shortestRun = 8
	longestRun  = 2 * 255
)

// appendPacked appends the packed form of a text without NUL.
func appendPacked(b []byte, text string) []byte {
	if len(text) == len(sha256Prefix)+sha256Digits && text[:len(sha256Prefix)] == sha256Prefix &&
		digits(text[len(sha256Prefix):]) == sha256Digits {
		return appendBytes(append(b, 0, 0), text[len(sha256Prefix):])
	}
	for text != "" {
		n := digits(text)
		if n < shortestRun {
			n = max(n, 1)
			b, text = append(b, text[:n]...), text[n:]
			continue
		}
		b = appendBytes(append(b, 0, byte(n/2)), text[:n])
		text = text[n:]
	}
	return b
}

// digits is the even number of lower-case hexadecimal digits that a text begins
// with, at most longestRun.
func digits(text string) int {
	n := 0
	for n < len(text) && n < longestRun && (text[n] >= '0' && text[n] <= '9' || text[n] >= 'a' && text[n] <= 'f') {
		n++
	}
	return n &^ 1
}

// appendBytes appends the bytes that digits stand for.
func appendBytes(b []byte, digits string) []byte {
	for n := 0; n < len(digits); n += 2 {
		b = append(b, nibble(digits[n])<<4|nibble(digits[n+1]))
	}
	return b
}

func nibble(digit byte) byte {
	if digit >= 'a' {
		return digit - 'a' + 10
	}
	return digit - '0'
}

// unpacked returns the text of a packed form; false where it is none.
func unpacked(packed []byte) (text string, ok bool) {
	var space [128]byte
	b := space[:0]
	for {
		next := bytes.IndexByte(packed, 0)
		if next < 0 {
			return string(append(b, packed...)), true
		}
		b = append(b, packed[:next]...)
		if packed = packed[next+1:]; len(packed) == 0 {
			return "", false
		}
		size := int(packed[0])
		if packed = packed[1:]; size == 0 {
			b, size = append(b, sha256Prefix...), sha256Digits/2
		}
		if len(packed) < size {
			return "", false
		}
		b, packed = hex.AppendEncode(b, packed[:size]), packed[size:]
	}
}
