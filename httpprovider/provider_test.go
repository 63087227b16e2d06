package httpprovider

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

func handoffOf(class supervisor.IdempotencyMode) *supervisor.Handoff {
	return &supervisor.Handoff{
		Intent: supervisor.ActionIntent{
			ID: "charge", TenantID: "default", InstanceID: "A-1", IdempotencyKey: "key-1",
			Input: json.RawMessage(`{"cents":100}`), Effect: supervisor.EffectExternalWrite, RetryClass: class,
		},
		Attempt: 1,
	}
}

func mustNew(t *testing.T, config Config) supervisor.Provider {
	t.Helper()
	provider, err := New(config)
	require.NoError(t, err)
	return provider
}

// ends are the ways in which a dispatch ends.
const (
	endReceipt   = "receipt"
	endNotSent   = "not sent"
	endRefused   = "refused"
	endAmbiguous = "ambiguous"
)

var (
	notSentType = fmt.Sprintf("%T", supervisor.NotSent(io.EOF))
	refusedType = fmt.Sprintf("%T", supervisor.Refused(io.EOF))
)

func endOf(err error) string {
	end := endAmbiguous
	if err == nil {
		return endReceipt
	}
	for ; err != nil; err = errors.Unwrap(err) {
		switch fmt.Sprintf("%T", err) {
		case refusedType:
			return endRefused
		case notSentType:
			end = endNotSent
		}
	}
	return end
}

// rawServer gives each connection to serve, and counts them.
func rawServer(t *testing.T, serve func(net.Conn)) (url string, connections *atomic.Int64) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	connections = new(atomic.Int64)
	go func() { // ends when the listener is closed
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			go func() { defer conn.Close(); serve(conn) }()
		}
	}()
	return "http://" + listener.Addr().String(), connections
}

// readRequest reads a request whole.
func readRequest(conn net.Conn) {
	request, err := http.ReadRequest(bufio.NewReader(conn))
	if err == nil {
		_, _ = io.Copy(io.Discard, request.Body)
	}
}

func TestEveryPhaseOfAFailure(t *testing.T) {
	gone, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	refusing := "http://" + gone.Addr().String()
	require.NoError(t, gone.Close())
	answer := func(text string) func(net.Conn) {
		return func(conn net.Conn) { readRequest(conn); _, _ = io.WriteString(conn, text) }
	}
	hang := func(conn net.Conn) { readRequest(conn); _, _ = io.Copy(io.Discard, conn) }
	for _, c := range []struct {
		name  string
		url   string
		serve func(net.Conn)
		end   string
	}{
		{"a refused connection", refusing, nil, endNotSent},
		{"a host that is not there", "http://host.invalid", nil, endNotSent},
		{"no TLS where it is expected", "", func(conn net.Conn) { _, _ = io.WriteString(conn, "SSH-2.0\r\n") }, endNotSent},
		{"closed after accept", "", func(net.Conn) {}, endAmbiguous},
		{"closed after the first bytes", "", func(conn net.Conn) { _, _ = conn.Read(make([]byte, 10)) }, endAmbiguous},
		{"closed after the request", "", readRequest, endAmbiguous},
		{"garbage", "", answer("nonsense\r\n\r\n"), endAmbiguous},
		{"half a header", "", answer("HTTP/1.1 200 OK\r\nContent-Le"), endAmbiguous},
		{"half a body", "", answer("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"a\""), endAmbiguous},
		{"half a chunked body", "", answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n"), endAmbiguous},
		{"half the body of a failure", "", answer("HTTP/1.1 422 No\r\nContent-Length: 10\r\n\r\n{\"a\""), endReceipt},
		{"a header without end", "", answer("HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 100_000)), endAmbiguous},
		{"nothing for ever", "", hang, endAmbiguous},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			target := c.url
			if c.serve != nil {
				target, _ = rawServer(t, c.serve)
			}
			if strings.Contains(c.name, "TLS") {
				target = "https" + strings.TrimPrefix(target, "http")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if c.name != "nothing for ever" {
				ctx = t.Context()
			}
			receipt, err := mustNew(t, Config{URL: target}).Dispatch(ctx, handoffOf(supervisor.IdempotencyNone))
			require.Equal(t, c.end, endOf(err), "%v %+v", err, receipt)
		})
	}
}

func TestContextThatEndsDuringTheDialIsNotSent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	_, err := mustNew(t, Config{URL: "http://127.0.0.1:1", Transport: transport}).Dispatch(ctx, handoffOf(supervisor.IdempotencyNone))
	require.Equal(t, endNotSent, endOf(err), err)
	require.ErrorIs(t, err, context.Canceled)
}

// roundTripper is a transport that has no trace.
type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func TestTransportWithoutTraceProvesNothing(t *testing.T) {
	transport := roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") })
	_, err := mustNew(t, Config{URL: "http://host", Transport: transport}).Dispatch(t.Context(), handoffOf(supervisor.IdempotencyNone))
	require.Equal(t, endAmbiguous, endOf(err), err)
}

// A transport that sends by other means first, and then dials, has sent.
func TestTransportThatReadTheBodyHasSent(t *testing.T) {
	transport := roundTripper(func(request *http.Request) (*http.Response, error) {
		_, _ = request.Body.Read(make([]byte, 1))
		return new(http.Transport).RoundTrip(request)
	})
	_, err := mustNew(t, Config{URL: "http://127.0.0.1:1", Transport: transport}).Dispatch(t.Context(), handoffOf(supervisor.IdempotencyNone))
	require.Equal(t, endAmbiguous, endOf(err), err)
}

// The transport of net/http repeats a POST by itself that has an
// Idempotency-Key, where a connection that was used before breaks.
func TestRequestIsSentOnce(t *testing.T) {
	var requests atomic.Int64
	url, connections := rawServer(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			request, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			if requests.Add(1) > 1 {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
	provider := mustNew(t, Config{URL: url})
	_, err := provider.Dispatch(t.Context(), handoffOf(supervisor.IdempotencyNative))
	require.NoError(t, err)
	_, err = provider.Dispatch(t.Context(), handoffOf(supervisor.IdempotencyNative))
	require.Equal(t, endAmbiguous, endOf(err), err)
	require.EqualValues(t, 2, requests.Load())
	require.EqualValues(t, 1, connections.Load())
}

func TestHTTP2(t *testing.T) {
	var requests atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.ProtoMajor != 2 || r.Header.Get("Idempotency-Key") != "key-1" {
			w.WriteHeader(http.StatusBadRequest)
		}
		if r.URL.Path == "/reset" {
			panic(http.ErrAbortHandler)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	for path, end := range map[string]string{"/fine": endReceipt, "/reset": endAmbiguous} {
		_, err := mustNew(t, Config{URL: server.URL + path, Transport: server.Client().Transport}).
			Dispatch(t.Context(), handoffOf(supervisor.IdempotencyNone))
		require.Equal(t, end, endOf(err), "%v", err)
	}
	require.EqualValues(t, 2, requests.Load())
	// The certificate is not known to others: nothing was sent.
	_, err := mustNew(t, Config{URL: server.URL}).Dispatch(t.Context(), handoffOf(supervisor.IdempotencyNone))
	require.Equal(t, endNotSent, endOf(err), err)
	require.EqualValues(t, 2, requests.Load())
}

func TestRequestCarriesTheHandoff(t *testing.T) {
	var got *http.Request
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	handoff := handoffOf(supervisor.IdempotencyNative)
	handoff.Intent.InstanceID, handoff.Intent.IdempotencyKey = "A/1 ?&é", "50% é\n"
	config := Config{
		Method: http.MethodPut,
		URL:    server.URL + "/t/{tenant}/i/{instance}/{intent}?n={attempt}&key={key}&id={identity}",
		Header: http.Header{"X-Fixed": {"a", "b"}, "Idempotency-Key": {"another"}},
		Prepare: func(h *supervisor.Handoff, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer of "+h.Intent.ID)
			r.Header.Set("Handoff-Identity", "another")
			return nil
		},
	}
	receipt, err := mustNew(t, config).Dispatch(t.Context(), handoff)
	require.NoError(t, err)
	require.Equal(t, supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderSucceeded}}, receipt)
	require.Equal(t, http.MethodPut, got.Method)
	require.Equal(t, "/t/default/i/A%2F1%20%3F%26%C3%A9/charge", got.URL.EscapedPath())
	require.Equal(t, "50% é\n", got.URL.Query().Get("key"))
	require.Equal(t, handoff.Identity(), got.URL.Query().Get("id"))
	require.Equal(t, "1", got.URL.Query().Get("n"))
	require.Equal(t, []string{"50%25%20%C3%A9%0A"}, got.Header.Values("Idempotency-Key"))
	require.Equal(t, []string{"default/A%2F1%20%3F&%C3%A9/charge/1"}, got.Header.Values("Handoff-Identity"))
	require.Equal(t, []string{"a", "b"}, got.Header.Values("X-Fixed"))
	require.Equal(t, "Bearer of charge", got.Header.Get("Authorization"))
	require.Equal(t, "application/json", got.Header.Get("Content-Type"))
	require.Equal(t, `{"cents":100}`, string(body))
	require.EqualValues(t, len(body), got.ContentLength)

	handoff.Intent.Input = nil
	config.Method, config.Header = "", http.Header{"Content-Type": {"application/vnd.shop+json"}}
	_, err = mustNew(t, config).Dispatch(t.Context(), handoff)
	require.NoError(t, err)
	require.Equal(t, http.MethodPost, got.Method)
	require.Equal(t, "null", string(body))
	require.Equal(t, "application/vnd.shop+json", got.Header.Get("Content-Type"))
}

func TestWhatIsNeverSent(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("sent") }))
	defer server.Close()
	boom := errors.New("boom")
	for _, c := range []struct {
		name   string
		config Config
		change func(*supervisor.Handoff)
		end    string
	}{
		{"an error of Prepare", Config{Prepare: func(*supervisor.Handoff, *http.Request) error { return boom }}, nil, endNotSent},
		{"a refusal of Prepare", Config{Prepare: func(*supervisor.Handoff, *http.Request) error { return supervisor.Refused(boom) }}, nil, endRefused},
		{"a write by GET", Config{Method: http.MethodGet}, nil, endRefused},
		{"an id of dots", Config{}, func(h *supervisor.Handoff) { h.Intent.InstanceID = ".." }, endRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.config.URL = server.URL + "/{instance}"
			handoff := handoffOf(supervisor.IdempotencyNone)
			if c.change != nil {
				c.change(handoff)
			}
			_, err := mustNew(t, c.config).Dispatch(t.Context(), handoff)
			require.Equal(t, c.end, endOf(err), err)
		})
	}
}

func TestReadByGet(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/from":
			http.Redirect(w, r, "/to", http.StatusFound)
		case r.ContentLength == 0 && r.Method == http.MethodGet:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"rate":1.10}`)
		}
	}))
	defer server.Close()
	handoff := handoffOf(supervisor.IdempotencyNone)
	handoff.Intent.Effect = supervisor.EffectRead
	receipt, err := mustNew(t, Config{Method: http.MethodGet, URL: server.URL + "/from"}).Dispatch(t.Context(), handoff)
	require.NoError(t, err)
	require.Equal(t, `{"rate":1.10}`, string(receipt.Output))
}

func TestRedirectOfAWriteIsNotFollowed(t *testing.T) {
	for status, end := range map[int]string{301: endAmbiguous, 302: endAmbiguous, 303: endAmbiguous, 307: endRefused, 308: endRefused} {
		requests := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests++
			http.Redirect(w, r, "/elsewhere", status)
		}))
		_, err := mustNew(t, Config{URL: server.URL}).Dispatch(t.Context(), handoffOf(supervisor.IdempotencyNone))
		server.Close()
		require.Equal(t, end, endOf(err), status)
		require.Equal(t, 1, requests, status)
	}
}

func TestHugeBodies(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `"`)
		for range 64 {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<20)); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	receipt, err := mustNew(t, Config{URL: server.URL, MaxBody: 10}).Dispatch(t.Context(), handoffOf(supervisor.IdempotencyNone))
	require.NoError(t, err)
	require.JSONEq(t, `{"content_type":"application/json","text":"\"xxxxxxxxx","truncated":true}`, string(receipt.Output))

	receipt, err = mustNew(t, Config{URL: server.URL, MaxBody: supervisor.MaxOutputBytes}).Dispatch(t.Context(), handoffOf(supervisor.IdempotencyNone))
	require.NoError(t, err)
	require.NoError(t, receipt.Validate())
	require.Contains(t, string(receipt.Output), `"truncated":true`)
}
