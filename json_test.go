package supervisor

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// exactNumbers is a raw value whose numbers no float64 and no int64 can hold as
// they are written.
const exactNumbers = `{"big":9007199254740993,"one":1.0,"huge":1e400,"u":18446744073709551615,"exp":-1.50E+07,"list":[0.10,-0]}`

// filler fills values of any type with content that differs from field to
// field and has nothing zero in it.
type filler struct{ count int }

func (f *filler) fill(t testing.TB, value reflect.Value) {
	f.count++
	switch target := value.Addr().Interface().(type) {
	case *time.Time:
		*target = time.Date(2026, time.June, 1, 12, 0, f.count, f.count, time.UTC)
		return
	case *json.RawMessage:
		*target = json.RawMessage(exactNumbers)
		return
	case *Disposition:
		*target = Failed{Reason: fmt.Sprint("reason ", f.count), RetryAt: time.Date(2026, time.June, 1, 12, 0, f.count, 0, time.UTC)}
		return
	}
	switch value.Kind() {
	case reflect.String:
		value.SetString(fmt.Sprintf("text %d", f.count))
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int, reflect.Int64:
		value.SetInt(int64(f.count) + 1<<53)
	case reflect.Uint8, reflect.Uint64:
		value.SetUint(uint64(f.count % 200))
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		f.fill(t, value.Elem())
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 2, 2))
		for n := range value.Len() {
			f.fill(t, value.Index(n))
		}
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		value.SetMapIndex(reflect.ValueOf("key"), reflect.ValueOf("value"))
	case reflect.Struct:
		for _, field := range value.Fields() {
			f.fill(t, field)
		}
	default:
		t.Fatalf("%v is of a kind that this test does not fill", value.Type())
	}
}

// Every type of data encodes with snake_case names and decodes back equal, full
// and empty.
func TestJSONRoundTrip(t *testing.T) {
	for _, zero := range []any{
		ActionIntent{}, CapabilityPin{}, ClaimRequest{}, Complete{}, CompletionPolicy{}, Continue{}, ControlEpochs{}, Counters{},
		EvaluationOutcome{}, Event{}, Explanation{}, Failed{}, Filter{}, Instance{}, Lease{}, LifecyclePolicy{}, Record{}, Reschedule{},
		ResourceReservationRef{}, Revision{}, Scope{}, Snapshot{}, TransitionCommand{}, Wakeup{}, WorkItem{},
	} {
		typ := reflect.TypeOf(zero)
		t.Run(typ.Name(), func(t *testing.T) {
			full := reflect.New(typ)
			(&filler{}).fill(t, full.Elem())
			for _, value := range []reflect.Value{full, reflect.New(typ)} {
				text, err := json.Marshal(value.Interface())
				require.NoError(t, err)
				requireSnakeCase(t, text)
				decoded := reflect.New(typ)
				require.NoError(t, json.Unmarshal(text, decoded.Interface()))
				require.Equal(t, value.Interface(), decoded.Interface())
			}
		})
	}
}

// requireSnakeCase looks at the names of all objects but raw values.
func requireSnakeCase(t testing.TB, text []byte) {
	snake := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	var visit func(any)
	visit = func(value any) {
		switch value := value.(type) {
		case map[string]any:
			for name, field := range value {
				require.Regexp(t, snake, name)
				visit(field)
			}
		case []any:
			for _, element := range value {
				visit(element)
			}
		}
	}
	var value any
	require.NoError(t, json.Unmarshal(regexp.MustCompile(regexp.QuoteMeta(exactNumbers)).ReplaceAll(text, []byte("null")), &value))
	visit(value)
}

// Numbers keep their text through any number of round trips.
func TestJSONKeepsNumbers(t *testing.T) {
	item := pinnedItem()
	claimedWakeups(item, 1)
	item.Config, item.State, item.Wakeups[0].Payload = json.RawMessage(exactNumbers), json.RawMessage(exactNumbers), json.RawMessage(exactNumbers)
	command := validCommand(item)
	command.EventPayload, command.NextState, command.ActionIntents[0].Input = json.RawMessage(exactNumbers), json.RawMessage(exactNumbers), json.RawMessage(exactNumbers)
	for range 3 {
		text, err := json.Marshal(item)
		require.NoError(t, err)
		var nextItem WorkItem
		require.NoError(t, json.Unmarshal(text, &nextItem))
		require.Equal(t, *item, nextItem)
		*item = nextItem

		text, err = json.Marshal(command)
		require.NoError(t, err)
		var nextCommand TransitionCommand
		require.NoError(t, json.Unmarshal(text, &nextCommand))
		require.Equal(t, *command, nextCommand)
		*command = nextCommand
	}
	for _, raw := range []json.RawMessage{
		item.Config, item.State, item.Wakeups[0].Payload, command.EventPayload, command.NextState, command.ActionIntents[0].Input,
	} {
		require.Equal(t, exactNumbers, string(raw))
	}
}
