package supervisor

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// canonicalContent is the revision's content in a form that depends on its
// meaning alone. Every part is preceded by its length.
func (r *Revision) canonicalContent() ([]byte, error) {
	spec, err := canonicalJSON(r.Spec)
	if err != nil {
		return nil, err
	}
	content := appendPart(nil, r.SpecID)
	content = appendPart(content, spec)
	content = appendPart(content, r.KernelABIVersion)

	pins := pinSet(r.Capabilities)
	content = binary.AppendUvarint(content, uint64(len(pins)))
	for _, pin := range pins {
		content = appendPart(content, pin.ID)
		content = appendPart(content, pin.ContractVersion)
		content = appendPart(content, pin.ContentDigest)
	}

	content = binary.AppendUvarint(content, uint64(len(r.ExpressionVersions)))
	for _, expression := range slices.Sorted(maps.Keys(r.ExpressionVersions)) {
		content = appendPart(content, expression)
		content = appendPart(content, r.ExpressionVersions[expression])
	}
	return appendPart(content, r.DependencySetDigest), nil
}

// pinSet returns pins in an order of their own, each once.
func pinSet(pins []CapabilityPin) []CapabilityPin {
	set := slices.Clone(pins)
	slices.SortFunc(set, func(a, b CapabilityPin) int {
		return cmp.Or(
			strings.Compare(a.ID, b.ID),
			strings.Compare(a.ContractVersion, b.ContractVersion),
			strings.Compare(a.ContentDigest, b.ContentDigest),
		)
	})
	return slices.Compact(set)
}

// canonicalJSON writes JSON without white space, object keys sorted and the
// last of equal ones kept, strings with the encoder's escapes and numbers by
// value.
func canonicalJSON(raw json.RawMessage) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return appendCanonical(nil, value)
}

func appendCanonical(text []byte, value any) ([]byte, error) {
	var err error
	switch value := value.(type) {
	case json.Number:
		return appendCanonicalNumber(text, string(value)), nil
	case []any:
		text = append(text, '[')
		for n, element := range value {
			if n > 0 {
				text = append(text, ',')
			}
			if text, err = appendCanonical(text, element); err != nil {
				return nil, err
			}
		}
		return append(text, ']'), nil
	case map[string]any:
		text = append(text, '{')
		for n, key := range slices.Sorted(maps.Keys(value)) {
			if n > 0 {
				text = append(text, ',')
			}
			if text, err = appendCanonical(text, key); err != nil {
				return nil, err
			}
			text = append(text, ':')
			if text, err = appendCanonical(text, value[key]); err != nil {
				return nil, err
			}
		}
		return append(text, '}'), nil
	default:
		// Strings, booleans and null.
		scalar, err := json.Marshal(value)
		return append(text, scalar...), err
	}
}

// appendCanonicalNumber writes a number as its significant digits, without
// zeros at either end, and a power of ten: 100, 1E2 and 1.00e+2 are all 1e2. No
// exponent is expanded, so that its size costs nothing.
func appendCanonicalNumber(text []byte, number string) []byte {
	digits, exponentText, _ := strings.Cut(strings.ToLower(number), "e")
	digits, negative := strings.CutPrefix(digits, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return append(text, '0')
	}
	trimmed := strings.TrimRight(digits, "0")
	if negative {
		text = append(text, '-')
	}
	text = append(text, trimmed...)
	text = append(text, 'e')
	return appendSum(text, exponentText, len(digits)-len(trimmed)-len(fraction))
}

// appendSum writes the sum of a decimal integer, empty for 0, and n, which is
// less than 10^18 either way. math/big would take quadratic time to read an
// integer as long as a hostile spec may hold.
func appendSum(text []byte, integer string, n int) []byte {
	integer, negative := strings.CutPrefix(strings.TrimPrefix(integer, "+"), "-")
	magnitude := []byte(strings.TrimLeft(integer, "0"))
	if negative {
		n = -n
	}
	if len(magnitude) <= 18 {
		// Nothing but digits, or nothing at all, which is 0.
		sum, _ := strconv.ParseInt(string(magnitude), 10, 64)
		sum += int64(n)
		if negative {
			sum = -sum
		}
		return strconv.AppendInt(text, sum, 10)
	}
	// The integer outweighs n, so that its sign stays.
	for at := len(magnitude) - 1; n != 0; at-- {
		if at < 0 {
			magnitude = append([]byte{'1'}, magnitude...)
			break
		}
		digit := int(magnitude[at]-'0') + n%10
		n /= 10
		switch {
		case digit < 0:
			digit += 10
			n--
		case digit > 9:
			digit -= 10
			n++
		}
		magnitude[at] = byte('0' + digit)
	}
	if negative {
		text = append(text, '-')
	}
	return append(text, bytes.TrimLeft(magnitude, "0")...)
}
