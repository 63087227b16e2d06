package supervisor

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/big"
	"slices"
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
	content = appendPart(content, string(spec))
	content = appendPart(content, r.KernelABIVersion)

	pins := slices.Clone(r.Capabilities)
	slices.SortFunc(pins, func(a, b CapabilityPin) int {
		return strings.Compare(a.ID+"\x00"+a.ContractVersion+"\x00"+a.ContentDigest, b.ID+"\x00"+b.ContractVersion+"\x00"+b.ContentDigest)
	})
	pins = slices.Compact(pins)
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

func appendPart(content []byte, part string) []byte {
	content = binary.AppendUvarint(content, uint64(len(part)))
	return append(content, part...)
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
	exponent := new(big.Int)
	if exponentText != "" {
		// The JSON grammar has proved it an integer.
		exponent.SetString(strings.TrimPrefix(exponentText, "+"), 10)
	}
	trimmed := strings.TrimRight(digits, "0")
	exponent.Add(exponent, big.NewInt(int64(len(digits)-len(trimmed)-len(fraction))))
	if negative {
		text = append(text, '-')
	}
	text = append(text, trimmed...)
	text = append(text, 'e')
	return exponent.Append(text, 10)
}
