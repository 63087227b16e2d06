package pgqueue

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// args are the parameters of one statement in PostgreSQL's binary format. They
// are built by calling one method per parameter in order; array starts one with
// n elements, which the next n calls add. Numbers, text and instants need no
// memory of their own, so that a batch of commits costs a few growing buffers.
//
// Nothing here depends on a session's settings: binary instants have no time
// zone and no date style.
type args struct {
	buffer []byte
	ends   []int // where each parameter ends in buffer; negative: it is NULL
	oids   []uint32
	left   int // elements that the current array still lacks
	fields int // fields that the current row still lacks
	sizeAt int // where the size of the current row goes

	values  [][]byte
	formats []int16
}

func (a *args) reset() {
	a.buffer, a.ends, a.oids, a.left = a.buffer[:0], a.ends[:0], a.oids[:0], 0
	a.fields = 0
}

// arrayOIDs are the types of arrays by the type of their elements.
func arrayOID(element uint32) uint32 {
	switch element {
	case pgtype.Int8OID:
		return pgtype.Int8ArrayOID
	case pgtype.Int4OID:
		return pgtype.Int4ArrayOID
	case pgtype.BoolOID:
		return pgtype.BoolArrayOID
	case pgtype.TimestamptzOID:
		return pgtype.TimestamptzArrayOID
	}
	return pgtype.TextArrayOID
}

// array starts a one-dimensional array parameter of n elements.
func (a *args) array(element uint32, n int) { a.arrayOf(element, arrayOID(element), n) }

// arrayOf starts an array of any type; an unknown type of the array itself is 0.
func (a *args) arrayOf(element, array uint32, n int) {
	dimensions := uint32(1)
	if n == 0 {
		dimensions = 0
	}
	a.buffer = binary.BigEndian.AppendUint32(a.buffer, dimensions)
	a.buffer = binary.BigEndian.AppendUint32(a.buffer, 1) // may hold NULL
	a.buffer = binary.BigEndian.AppendUint32(a.buffer, element)
	if n > 0 {
		a.buffer = binary.BigEndian.AppendUint32(a.buffer, uint32(n))
		a.buffer = binary.BigEndian.AppendUint32(a.buffer, 1) // lower bound
	}
	a.oids = append(a.oids, array)
	if a.left = n; n == 0 {
		a.ends = append(a.ends, len(a.buffer))
	}
}

// row starts an element of an array of rows; its fields are the next n values.
func (a *args) row(n int) {
	a.sizeAt = len(a.buffer)
	a.buffer = binary.BigEndian.AppendUint32(a.buffer, 0) // set by its last field
	a.buffer = binary.BigEndian.AppendUint32(a.buffer, uint32(n))
	a.fields = n
}

// field counts a field that ends size bytes behind the buffer.
func (a *args) field(size int) {
	if a.fields--; a.fields > 0 {
		return
	}
	end := len(a.buffer) + size
	binary.BigEndian.PutUint32(a.buffer[a.sizeAt:], uint32(end-a.sizeAt-4))
	if a.left--; a.left == 0 {
		a.ends = append(a.ends, end)
	}
}

// begin opens a value of a known size, which the caller appends at once.
func (a *args) begin(oid uint32, size int) {
	if a.fields > 0 {
		a.buffer = binary.BigEndian.AppendUint32(a.buffer, oid)
		a.buffer = binary.BigEndian.AppendUint32(a.buffer, uint32(size))
		a.field(size)
		return
	}
	if a.left == 0 {
		a.oids = append(a.oids, oid)
		a.ends = append(a.ends, len(a.buffer)+size)
		return
	}
	a.buffer = binary.BigEndian.AppendUint32(a.buffer, uint32(size))
	if a.left--; a.left == 0 {
		a.ends = append(a.ends, len(a.buffer)+size)
	}
}

func (a *args) null(oid uint32) {
	if a.fields > 0 {
		a.buffer = binary.BigEndian.AppendUint32(a.buffer, oid)
		a.buffer = binary.BigEndian.AppendUint32(a.buffer, math.MaxUint32)
		a.field(0)
		return
	}
	if a.left == 0 {
		a.oids = append(a.oids, oid)
		a.ends = append(a.ends, -1-len(a.buffer))
		return
	}
	a.buffer = binary.BigEndian.AppendUint32(a.buffer, math.MaxUint32)
	if a.left--; a.left == 0 {
		a.ends = append(a.ends, len(a.buffer))
	}
}

func (a *args) int8(v int64) {
	a.begin(pgtype.Int8OID, 8)
	a.buffer = binary.BigEndian.AppendUint64(a.buffer, uint64(v))
}

// int8OrNull writes NULL for 0.
func (a *args) int8OrNull(v int64) {
	if v == 0 {
		a.null(pgtype.Int8OID)
		return
	}
	a.int8(v)
}

func (a *args) int4(v int) {
	a.begin(pgtype.Int4OID, 4)
	a.buffer = binary.BigEndian.AppendUint32(a.buffer, uint32(v))
}

func (a *args) bool(v bool) {
	a.begin(pgtype.BoolOID, 1)
	if v {
		a.buffer = append(a.buffer, 1)
		return
	}
	a.buffer = append(a.buffer, 0)
}

func (a *args) text(v string) {
	a.begin(pgtype.TextOID, len(v))
	a.buffer = append(a.buffer, v...)
}

// packed writes a text in its packed form.
func (a *args) packed(v string) {
	var space [128]byte
	form := appendPacked(space[:0], v)
	a.begin(pgtype.ByteaOID, len(form))
	a.buffer = append(a.buffer, form...)
}

// textOrNull writes NULL for the empty text.
func (a *args) textOrNull(v string) {
	if v == "" {
		a.null(pgtype.TextOID)
		return
	}
	a.text(v)
}

// raw writes JSON, NULL for none.
func (a *args) raw(v []byte) {
	if len(v) == 0 {
		a.null(pgtype.TextOID)
		return
	}
	a.begin(pgtype.TextOID, len(v))
	a.buffer = append(a.buffer, v...)
}

// texts writes an array, NULL for none.
func (a *args) texts(v []string) {
	if len(v) == 0 {
		a.null(pgtype.TextArrayOID)
		return
	}
	a.array(pgtype.TextOID, len(v))
	for _, s := range v {
		a.text(s)
	}
}

// instant writes an instant, NULL for the zero one. PostgreSQL counts
// microseconds; what is between two is rounded up, so that nothing is due
// before the instant that was asked for.
func (a *args) instant(t time.Time) {
	if t.IsZero() {
		a.null(pgtype.TimestamptzOID)
		return
	}
	a.begin(pgtype.TimestamptzOID, 8)
	a.buffer = binary.BigEndian.AppendUint64(a.buffer, uint64(toMicros(t)))
}

// bind lays the parameters out for the protocol.
func (a *args) bind() (values [][]byte, oids []uint32, formats []int16) {
	a.values = a.values[:0]
	start := 0
	for _, end := range a.ends {
		if end < 0 {
			a.values = append(a.values, nil)
			continue
		}
		a.values = append(a.values, a.buffer[start:end:end])
		start = end
	}
	if a.formats == nil {
		a.formats = []int16{1}
	}
	return a.values, a.oids, a.formats
}

// micros2000 is the instant from which PostgreSQL counts, in Unix microseconds.
const micros2000 = 946_684_800_000_000

func toMicros(t time.Time) int64 {
	micros := t.UnixMicro()
	if t.Nanosecond()%1000 != 0 {
		micros++
	}
	return micros - micros2000
}

func fromMicros(micros int64) time.Time {
	return time.UnixMicro(micros + micros2000).UTC()
}

// cells are the columns of one result row, read in order. Values are only good
// until the next row is read: what is kept is copied. A value of the wrong size
// sets bad.
type cells struct {
	values [][]byte
	bad    bool
}

func (c *cells) next() []byte {
	if len(c.values) == 0 {
		c.bad = true
		return nil
	}
	value := c.values[0]
	c.values = c.values[1:]
	return value
}

// int8 reads a number, 0 for NULL.
func (c *cells) int8() int64 {
	value := c.next()
	if len(value) != 8 {
		c.bad = c.bad || value != nil
		return 0
	}
	return int64(binary.BigEndian.Uint64(value))
}

func (c *cells) int4() int {
	value := c.next()
	if len(value) != 4 {
		c.bad = c.bad || value != nil
		return 0
	}
	return int(int32(binary.BigEndian.Uint32(value)))
}

func (c *cells) bool() bool {
	value := c.next()
	return len(value) == 1 && value[0] != 0
}

func (c *cells) text() string { return string(c.next()) }

// packed reads a text in its packed form, empty for NULL.
func (c *cells) packed() string {
	text, ok := unpacked(c.next())
	c.bad = c.bad || !ok
	return text
}

// instant reads an instant, zero for NULL.
func (c *cells) instant() time.Time {
	value := c.next()
	if len(value) != 8 {
		c.bad = c.bad || value != nil
		return time.Time{}
	}
	return fromMicros(int64(binary.BigEndian.Uint64(value)))
}

// elements calls each with the elements of a one-dimensional array, nil being
// NULL, and returns their number.
func (c *cells) elements(each func(n int, element []byte)) int {
	value := c.next()
	if value == nil {
		return 0
	}
	if len(value) < 12 {
		c.bad = true
		return 0
	}
	if binary.BigEndian.Uint32(value) == 0 {
		return 0
	}
	if len(value) < 20 {
		c.bad = true
		return 0
	}
	count := int(binary.BigEndian.Uint32(value[12:]))
	value = value[20:]
	for n := range count {
		if len(value) < 4 {
			c.bad = true
			return n
		}
		size := int(int32(binary.BigEndian.Uint32(value)))
		value = value[4:]
		if size < 0 {
			each(n, nil)
			continue
		}
		if len(value) < size {
			c.bad = true
			return n
		}
		each(n, value[:size:size])
		value = value[size:]
	}
	return count
}
