package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pipes is a network in memory: a bubble's clock stands still while anybody waits
// for a real one.
func pipes() network {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	return network{
		listen: func(context.Context) (net.Listener, error) { return l, nil },
		dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			client, server := net.Pipe()
			select {
			case l.conns <- server:
				return client, nil
			case <-l.closed:
				return nil, net.ErrClosed
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "payments" }

// runOn runs the whole program in a bubble, where an hour passes in no time.
func runOn(t *testing.T, stdin io.Reader, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var out, errs bytes.Buffer
		status = run(t.Context(), pipes(), args, stdin, &out, &errs)
		stdout, stderr = out.String(), errs.String()
	})
	return status, stdout, stderr
}

func TestOwnFile(t *testing.T) {
	status, stdout, stderr := runOn(t, nil)
	require.Equal(t, exitFine, status)
	require.Equal(t, `    outcome  orders  expected
    shipped       9         9
  cancelled       1         1
     failed       2         2

A-1005  failed  the card was declined
A-1010  failed  no postage to country "AT-LANTIS"

the payment server's ledger: 10 orders charged once, 0 twice, 0 not at all

12 orders in 3.2s, 6 retries: all as expected
`, stdout)
	// What happens at the same instant as a line may come before or after it.
	require.Regexp(t, `^  1\.0s  read 12, ended 8; on the way: .*
  2\.0s  read 12, ended 9; on the way: .*
  3\.0s  read 12, ended \d+; on the way: .*
$`, stderr)
}

// thousandOrders are some of which every tenth is declined, with ids that have to
// be escaped on their way.
func thousandOrders() io.Reader {
	var in strings.Builder
	for n := range 1000 {
		extra := ""
		if n%10 == 7 {
			extra = `,"card":"declined"`
		}
		fmt.Fprintf(&in, `{"id":"%d/ é","country":"NL","cents":100%s}`+"\n", n, extra)
	}
	return strings.NewReader(in.String())
}

// forgetfulLedger is that of a server which says that it will not accept an
// identity, and does.
type forgetfulLedger struct{ ledger }

func (l forgetfulLedger) decide(ctx context.Context, v verdict) (verdict, error) {
	if v.State != stateNever {
		return l.ledger.decide(ctx, v)
	}
	for known := range l.all(ctx) {
		if known.Identity == v.Identity {
			return known, nil
		}
	}
	return v, nil
}

// The proof is one: it finds what becomes of a promise that is broken.
func TestProofFindsDoubleCharges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := pipes()
		listener, err := over.listen(t.Context())
		require.NoError(t, err)
		books, err := openLedger(t.Context(), "")
		require.NoError(t, err)
		stop := servePayments(t.Context(), listener, forgetfulLedger{books}, true)
		var out bytes.Buffer
		args := []string{"-payments", "http://" + listener.Addr().String(), "-faults", "-workers", "64", "-"}
		require.Equal(t, exitWrong, run(t.Context(), over, args, thousandOrders(), &out, io.Discard))
		require.NoError(t, stop())
		require.Regexp(t, `ledger: \d+ orders charged once, [1-9]\d* twice, 0 not at all`, out.String())
		require.Contains(t, out.String(), ": not all as expected")
	})
}

// In memory, and with every fault.
func TestFaultsInMemory(t *testing.T) {
	status, stdout, stderr := runOn(t, thousandOrders(), "-faults", "-workers", "64", "-")
	require.Equal(t, exitFine, status, stdout+stderr)
	require.Contains(t, stdout, "the payment server's ledger: 900 orders charged once, 0 twice, 0 not at all\nsince its start it failed ")
	for _, way := range []fault{faultBefore, faultLate, faultAfter, faultSilent, faultTwice, faultError} {
		require.Contains(t, stdout, string(way))
	}
}

func TestPaceSlowsEveryStep(t *testing.T) {
	status, stdout, _ := runOn(t, strings.NewReader(`{"id":"a","country":"NL","cents":1}`), "-pace", "30m", "-")
	require.Equal(t, exitFine, status)
	require.Contains(t, stdout, "1 orders in 5400.0s, 0 retries: all as expected")
}

func TestInputsOfAllKinds(t *testing.T) {
	const good = `{"id":"%s","country":"NL","cents":1}` + "\n"
	for _, c := range []struct {
		name, in       string
		status         int
		stdout, stderr string // what each holds
	}{
		{"an empty file", "", exitFine, "0 orders in 0.0s, 0 retries: all as expected", ""},
		{"garbage", "\x00\x01\x02\n<html>\n" + strings.Repeat("x", 3*maxLine) + "\n\xff\xfe\n", exitWrong,
			"lines refused       4         0\n\n0 orders in 0.0s, 0 retries: not all as expected",
			"orders: line 1: invalid character '\\x00' looking for beginning of value\n" +
				"orders: line 2: invalid character '<' looking for beginning of value\n" +
				"orders: line 3: longer than 65536 bytes\n" +
				"orders: line 4: not valid UTF-8\n"},
		{"garbage between orders", fmt.Sprintf(good, "a") + "~\n" + fmt.Sprintf(good, "b"), exitWrong,
			"      shipped       2         2\n", "orders: line 2: invalid character '~' looking for beginning of value\n"},
		{"an id that no queue could keep", fmt.Sprintf(good, `\u0000`), exitWrong,
			"lines refused       1         0\n", "orders: line 1: supervisor: instance: Config escapes a NUL character"},
		{"an id that is too long", fmt.Sprintf(good, strings.Repeat("i", 513)), exitWrong,
			"lines refused       1         0\n", "orders: line 1: supervisor: instance: ID has 513 bytes"},
		{"an order that comes twice", fmt.Sprintf(good, "a") + fmt.Sprintf(good, "a"), exitFine,
			"1 orders in 0.0s, 0 retries, 1 lines of orders that had come: all as expected", ""},
		{"two orders with one id", `{"id":"a","country":"NL","cents":1,"stock":"late"}` + "\n" + `{"id":"a","country":"NL","cents":2,"stock":"late"}`, exitWrong,
			"      shipped       1         1\n", `: order "a" is on its way with other content`},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, stdout, stderr := runOn(t, strings.NewReader(c.in), "-")
			require.Equal(t, c.status, status)
			require.Contains(t, stdout, c.stdout)
			if c.stderr == "" {
				require.Empty(t, stderr)
			}
			require.Contains(t, stderr, c.stderr)
		})
	}
}

// With room for one order, the second line is met after the first has ended.
func TestOrderThatComesAgainAfterItsEnd(t *testing.T) {
	const first = `{"id":"a","country":"NL","cents":1}` + "\n"
	status, stdout, _ := runOn(t, strings.NewReader(first+first), "-window", "1", "-")
	require.Equal(t, exitFine, status)
	require.Contains(t, stdout, "1 orders in 0.0s, 0 retries, 1 lines of orders that had come: all as expected")

	status, stdout, stderr := runOn(t, strings.NewReader(first+`{"id":"a","country":"NL","cents":2}`), "-window", "1", "-")
	require.Equal(t, exitWrong, status)
	require.Contains(t, stdout, "1 orders in 0.0s, 0 retries: not all as expected")
	require.Contains(t, stderr, `: order "a" is stored with other content: {"id":"a","country":"NL","cents":`)
}

func TestCalls(t *testing.T) {
	here := filepath.Join(t.TempDir(), "orders.jsonl")
	require.NoError(t, os.WriteFile(here, []byte(`{"id":"a","country":"NL","cents":1}`), 0o600))
	for _, c := range []struct {
		args   []string
		status int
		stderr string
	}{
		{[]string{here}, exitFine, ""},
		{[]string{"-h"}, exitFine, "usage: orders [flags] [file]"},
		{[]string{"-no-such-flag"}, exitUsage, "flag provided but not defined: -no-such-flag"},
		{[]string{"-workers", "0"}, exitUsage, "orders: -workers is 0, must be at least 1; -h tells more\n"},
		{[]string{"-window", "-1"}, exitUsage, "orders: -window is -1, must be at least 1; -h tells more\n"},
		{[]string{"-pace", "-1s"}, exitUsage, "orders: -pace is -1s, must not be negative; -h tells more\n"},
		{[]string{"-serve", ":0", here}, exitUsage, "orders: -serve goes with -db and -faults alone; -h tells more\n"},
		{[]string{"-payments", "shop", here}, exitUsage, "orders: -payments is \"shop\", must begin with http://; -h tells more\n"},
		{[]string{"-serve", "nowhere:x"}, exitWrong, "orders: listen tcp"},
		{[]string{"-db", filepath.Dir(here)}, exitWrong, "orders: sqlitequeue: open "},
		{[]string{here, here}, exitUsage, "orders: one file at most, not 2; -h tells more\n"},
		{[]string{here + ".gone"}, exitUsage, "no such file"},
		{[]string{filepath.Dir(here)}, exitWrong, "is a directory"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			status, _, stderr := runOn(t, nil, c.args...)
			require.Equal(t, c.status, status)
			require.Contains(t, stderr, c.stderr)
		})
	}
}

func TestHelpNamesEveryFlagAndField(t *testing.T) {
	_, _, stderr := runOn(t, nil, "-h")
	for _, word := range []string{"-db", "-faults", "-pace", "-payments", "-serve", "-v", "-window", "-workers", "id ", "customer", "country", "cents", "card", "stock"} {
		require.Contains(t, stderr, word)
	}
}

func TestInterruptEndsInGoodOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		var out, errs bytes.Buffer
		require.Equal(t, exitWrong, run(ctx, pipes(), nil, nil, &out, &errs))
		require.Contains(t, errs.String(), "orders: interrupted; without -db nothing is left of the orders on the way\n")
		require.Contains(t, out.String(), " on the way       3         0\n")
		require.Contains(t, out.String(), "9 orders in 1.5s")
	})
}

func TestVerboseLogsTheSupervisor(t *testing.T) {
	_, _, stderr := runOn(t, strings.NewReader(`{"id":"a","country":"NL","cents":1}`), "-v", "-")
	require.Regexp(t, `(?m)^time=.* level=DEBUG msg=committed .* instance_id=a .* event_type=order\.shipped$`, stderr)
}

// manyOrders is an input of any length that takes no memory.
type manyOrders struct {
	next, count int
	rest        []byte
	largest     uint64 // bytes of live heap seen while it was read
}

func (m *manyOrders) Read(p []byte) (int, error) {
	if len(m.rest) == 0 {
		if m.next == m.count {
			return 0, io.EOF
		}
		if m.next%2_000 == 0 {
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			m.largest = max(m.largest, stats.HeapAlloc)
		}
		extra := ""
		switch m.next % 200 {
		case 50:
			extra = `,"card":"busy"`
		case 100:
			extra = `,"card":"declined"`
		case 150:
			extra = `,"stock":"late"`
		case 199:
			extra = `,"stock":"never"`
		}
		m.rest = fmt.Appendf(m.rest[:0], `{"id":"%d","country":"NL","cents":100%s}`+"\n", m.next, extra)
		m.next++
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

func TestManyOrdersInFlatMemory(t *testing.T) {
	const count = 10_000
	in := &manyOrders{count: count}
	status, stdout, stderr := runOn(t, in, "-window", "500", "-")
	require.Equal(t, exitFine, status, stderr)
	require.Regexp(t, fmt.Sprintf(`shipped +%d +%[1]d\n`, count/200*198), stdout)
	require.Contains(t, stdout, fmt.Sprintf("%d orders in ", count))
	require.Contains(t, stdout, "all as expected")
	// A thousand on the way and a thousand not yet forgotten, at some KiB each.
	require.Less(t, in.largest, uint64(20<<20))
}
