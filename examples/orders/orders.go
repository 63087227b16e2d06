package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// sample is what the program reads where no file is given.
//
//go:embed orders.jsonl
var sample []byte

// order is one line of the input. Card and Stock say how the world will treat
// the order, so that a run can be repeated.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer,omitempty"`
	Country  string `json:"country"`
	Cents    int64  `json:"cents"` // the goods, without postage
	Card     card   `json:"card,omitempty"`
	Stock    stock  `json:"stock,omitempty"`
}

type card string

const (
	cardGood     card = ""
	cardBusy     card = "busy"     // the bank answers at the third attempt
	cardDeclined card = "declined" // the bank says no
)

type stock string

const (
	stockHere  stock = ""
	stockLate  stock = "late"  // has to be delivered first
	stockNever stock = "never" // so that the customer cancels
)

// validate reports what keeps a line from being an order at all. Whether the
// shop can serve the order is for the workflow to find out.
func (o *order) validate() error {
	switch {
	case o.ID == "":
		return errors.New(`"id" is missing`)
	case o.Card != cardGood && o.Card != cardBusy && o.Card != cardDeclined:
		return fmt.Errorf(`"card" is %.40q, must be %q, %q or absent`, o.Card, cardBusy, cardDeclined)
	case o.Stock != stockHere && o.Stock != stockLate && o.Stock != stockNever:
		return fmt.Errorf(`"stock" is %.40q, must be %q, %q or absent`, o.Stock, stockLate, stockNever)
	}
	return nil
}

// maxLine bounds a line of the input in bytes, and with it the memory that any
// input can make the program use.
const maxLine = 64 << 10

// lineError is a line that is no order. The lines after it are read all the same.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

var errLongLine = fmt.Errorf("longer than %d bytes", maxLine)

// orderReader reads JSON lines, one order each, in constant memory.
type orderReader struct {
	in   *bufio.Reader
	line int // of the order that next returned
}

func newOrderReader(in io.Reader) *orderReader {
	return &orderReader{in: bufio.NewReaderSize(in, maxLine)}
}

// next returns the next order. A [*lineError] is a line that is none; the next
// call goes on behind it. Any other error is the last: [io.EOF], or the
// reader's own. Blank lines are skipped.
func (r *orderReader) next() (order, error) {
	for {
		text, err := r.readLine()
		if errors.Is(err, errLongLine) {
			return order{}, &lineError{r.line, err}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return order{}, err
		}
		if len(text) > 0 {
			// The end of the input comes again with the next call.
			o, err := parseOrder(text)
			if err != nil {
				return order{}, &lineError{r.line, err}
			}
			return o, nil
		}
		if err != nil {
			return order{}, err
		}
	}
}

// readLine returns the next line without white space around it, in memory that
// the next call uses again.
func (r *orderReader) readLine() ([]byte, error) {
	r.line++
	text, err := r.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.in.ReadSlice('\n')
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = errLongLine
		}
		return nil, err
	}
	if r.line == 1 {
		text = bytes.TrimPrefix(text, []byte("\ufeff")) // the byte order mark of some editors
	}
	return bytes.TrimSpace(text), err
}

// parseOrder is strict: a misspelt field is an error, not an order that is
// treated in another way than was meant.
func parseOrder(text []byte) (order, error) {
	if !utf8.Valid(text) {
		return order{}, errors.New("not valid UTF-8")
	}
	var parsed order
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&parsed); err != nil {
		return order{}, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return order{}, errors.New("more than one value")
	}
	return parsed, parsed.validate()
}
