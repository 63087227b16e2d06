package httpprovider

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// The table of the package documentation, status by status.
func TestTable(t *testing.T) {
	want := map[int]Meaning{}
	for meaning, statuses := range map[Meaning][]int{
		Succeeded: {200, 201, 203, 204, 205},
		Running:   {202},
		Failed:    {400, 402, 410, 412, 422},
		Refused:   {307, 308, 403, 404, 405, 406, 411, 413, 414, 415, 417, 421, 426, 428, 431, 451},
		NotSent:   {401, 407, 425, 429},
	} {
		for _, status := range statuses {
			want[status] = meaning
		}
	}
	for status := 100; status < 1000; status++ {
		meaning, listed := want[status]
		if !listed {
			meaning = Ambiguous
		}
		require.Equal(t, meaning, meaningOf(status), status)
	}
}

func answerOf(status int, headers map[string]string, body string) *Answer {
	a := &Answer{Status: status, Header: http.Header{}, Body: []byte(body), URL: &url.URL{Scheme: "http", Host: "shop:80", Path: "/charges"}}
	for name, value := range headers {
		a.Header.Set(name, value)
	}
	return a
}

func TestReceipts(t *testing.T) {
	jsonType := map[string]string{"Content-Type": "application/problem+json; charset=utf-8"}
	success := func(output string) supervisor.Receipt {
		receipt := supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderSucceeded}}
		if output != "" {
			receipt.Output = []byte(output)
		}
		return receipt
	}
	for _, c := range []struct {
		name   string
		answer *Answer
		want   supervisor.Receipt
	}{
		{"nothing", answerOf(204, nil, ""), success("")},
		{"JSON as it came", answerOf(200, jsonType, `{ "n":1e400 }`), success(`{ "n":1e400 }`)},
		{"JSON that no store holds", answerOf(200, jsonType, `"\u0000"`), success(`{"content_type":"application/problem+json; charset=utf-8","text":"\"\\u0000\""}`)},
		{"JSON that is none", answerOf(200, jsonType, `{`), success(`{"content_type":"application/problem+json; charset=utf-8","text":"{"}`)},
		{"text", answerOf(200, map[string]string{"Content-Type": "text/plain"}, `42`), success(`{"content_type":"text/plain","text":"42"}`)},
		{"no content type", answerOf(200, nil, `42`), success(`{"text":"42"}`)},
		{"bytes", answerOf(200, nil, "\x00\xff"), success(`{"base64":"AP8="}`)},
		{"accepted", answerOf(202, map[string]string{"Location": "/jobs/7#x", "Retry-After": "3"}, "queued"),
			supervisor.Receipt{Reference: "http://shop:80/jobs/7", Report: supervisor.Report{Status: supervisor.ProviderRunning, After: 3 * time.Second}}},
		{"accepted, at the same server in other words", answerOf(202, map[string]string{"Location": "HTTP://SHOP/jobs"}, ""),
			supervisor.Receipt{Reference: "http://SHOP/jobs", Report: supervisor.Report{Status: supervisor.ProviderRunning}}},
		{"accepted, without a location", answerOf(202, map[string]string{"Retry-After": "3"}, ""),
			supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderUnknown}}},
		{"accepted, at another server", answerOf(202, map[string]string{"Location": "http://evil/jobs"}, ""),
			supervisor.Receipt{Reference: "http://evil/jobs", Report: supervisor.Report{Status: supervisor.ProviderUnknown}}},
		{"accepted, with a location too long to keep", answerOf(202, map[string]string{"Location": "/" + strings.Repeat("x", 5000)}, ""),
			supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderUnknown}}},
		{"accepted, with a location that is none", answerOf(202, map[string]string{"Location": "http://[::1"}, ""),
			supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderUnknown}}},
		{"failed", answerOf(402, nil, "secret"), supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderFailed, Reason: "http_402"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			receipt, err := c.answer.Receipt()
			require.NoError(t, err)
			require.Equal(t, c.want, receipt)
			require.NoError(t, receipt.Validate())
		})
	}
}

func TestAnswersThatAreNoReceipt(t *testing.T) {
	for status, end := range map[int]string{403: endRefused, 429: endNotSent, 409: endAmbiguous, 500: endAmbiguous, 503: endAmbiguous} {
		_, err := answerOf(status, map[string]string{"Retry-After": "1"}, "secret").Receipt()
		require.Equal(t, end, endOf(err))
		var asked *StatusError
		require.ErrorAs(t, err, &asked)
		require.Equal(t, status, asked.Status)
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestConfigChangesTheTable(t *testing.T) {
	config := &Config{Statuses: map[int]Meaning{503: NotSent, 200: Ambiguous}, BodyInReason: true, LookupURL: "http://shop/lookup"}
	for _, c := range []struct {
		answer *Answer
		end    string
		want   supervisor.Receipt
	}{
		{answerOf(503, nil, ""), endNotSent, supervisor.Receipt{}},
		{answerOf(200, nil, ""), endAmbiguous, supervisor.Receipt{}},
		{answerOf(422, nil, " no\x00\xff "), endReceipt, supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderFailed, Reason: "http_422: no??"}}},
		{answerOf(422, nil, strings.Repeat("x", 5000)), endReceipt,
			supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderFailed, Reason: "http_422: " + strings.Repeat("x", 1024)}}},
		{answerOf(202, nil, ""), endReceipt, supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderRunning}}},
	} {
		c.answer.config = config
		receipt, err := c.answer.Receipt()
		require.Equal(t, c.end, endOf(err))
		require.Equal(t, c.want, receipt)
	}
}

// work is a server at which accepted work can be looked at.
func work(t *testing.T, serve http.HandlerFunc) (*httptest.Server, supervisor.Receipt) {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	return server, supervisor.Receipt{Reference: server.URL + "/jobs/7"}
}

func TestObserve(t *testing.T) {
	for _, c := range []struct {
		status int
		after  string
		want   supervisor.Report
		fails  bool
	}{
		{status: 200, want: supervisor.Report{Status: supervisor.ProviderSucceeded, Output: []byte(`{"text":"done"}`)}},
		{status: 202, after: "9", want: supervisor.Report{Status: supervisor.ProviderRunning, After: 9 * time.Second}},
		{status: 202, want: supervisor.Report{Status: supervisor.ProviderRunning}},
		{status: 404, want: supervisor.Report{Status: supervisor.ProviderUnknown}},
		{status: 410, want: supervisor.Report{Status: supervisor.ProviderUnknown}},
		{status: 429, after: "1", want: supervisor.Report{Status: supervisor.ProviderRunning, After: time.Second}},
		{status: 503, after: "1", want: supervisor.Report{Status: supervisor.ProviderRunning, After: time.Second}},
		{status: 503, fails: true},
		{status: 403, fails: true},
		{status: 500, fails: true},
	} {
		t.Run(strconv.Itoa(c.status)+c.after, func(t *testing.T) {
			server, receipt := work(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != "/jobs/7" || r.Header.Get("Idempotency-Key") != "key-1" {
					t.Errorf("%s %s", r.Method, r.URL)
				}
				w.Header()["Content-Type"] = nil
				w.Header().Set("Retry-After", c.after)
				w.WriteHeader(c.status)
				if c.status == http.StatusOK {
					_, _ = w.Write([]byte("done"))
				}
			})
			observer, ok := mustNew(t, Config{URL: server.URL}).(supervisor.ReceiptObserver)
			require.True(t, ok)
			report, err := observer.Observe(t.Context(), handoffOf(supervisor.IdempotencyNone), receipt)
			require.Equal(t, c.fails, err != nil, err)
			require.Equal(t, c.want, report)
		})
	}
}

// A stored reference may come from elsewhere; secrets go to the own server alone.
func TestOtherServersAreNeverAsked(t *testing.T) {
	evil := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("asked") }))
	defer evil.Close()
	server, receipt := work(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, evil.URL, http.StatusFound) })
	provider := mustNew(t, Config{URL: server.URL, CancelByDelete: true})
	observer := provider.(supervisor.ReceiptObserver)
	_, err := observer.Observe(t.Context(), handoffOf(supervisor.IdempotencyNone), receipt)
	require.Error(t, err, "its redirect is not followed")
	for _, reference := range []string{"", evil.URL, ":", "/jobs/7", strings.Replace(server.URL, "//", "//user@", 1)} {
		report, err := observer.Observe(t.Context(), handoffOf(supervisor.IdempotencyNone), supervisor.Receipt{Reference: reference})
		require.NoError(t, err)
		require.Equal(t, supervisor.Report{Status: supervisor.ProviderUnknown}, report, reference)
		require.Error(t, provider.(supervisor.Canceller).Cancel(t.Context(), handoffOf(supervisor.IdempotencyNone), supervisor.Receipt{Reference: reference}))
	}
}

func TestOwnReading(t *testing.T) {
	server, receipt := work(t, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(`declined`)) })
	provider := mustNew(t, Config{
		URL: server.URL,
		Receipt: func(h *supervisor.Handoff, a *Answer) (supervisor.Receipt, error) {
			return supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderFailed, Reason: string(a.Body)}}, nil
		},
		Report: func(h *supervisor.Handoff, a *Answer) (supervisor.Report, error) {
			return supervisor.Report{Status: supervisor.ProviderCancelled, Reason: h.Intent.ID}, nil
		},
	})
	got, err := provider.Dispatch(t.Context(), handoffOf(supervisor.IdempotencyNone))
	require.NoError(t, err)
	require.Equal(t, "declined", got.Reason)
	report, err := provider.(supervisor.ReceiptObserver).Observe(t.Context(), handoffOf(supervisor.IdempotencyNone), receipt)
	require.NoError(t, err)
	require.Equal(t, supervisor.Report{Status: supervisor.ProviderCancelled, Reason: "charge"}, report)
}

func TestReconcile(t *testing.T) {
	for _, c := range []struct {
		status int
		final  bool
		want   supervisor.Reconciliation
	}{
		{200, false, supervisor.Accepted{Receipt: supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderSucceeded}}}},
		{202, false, supervisor.Accepted{Receipt: supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderRunning}}}},
		{404, false, supervisor.NotAccepted{}},
		{404, true, supervisor.NotAccepted{Final: true}},
		{410, true, nil},
		{403, true, nil},
		{500, true, nil},
	} {
		server, _ := work(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.EscapedPath() != "/lookup/default%2FA-1%2Fcharge%2F1" || r.Method != http.MethodGet {
				t.Errorf("%s %s", r.Method, r.URL.EscapedPath())
			}
			w.WriteHeader(c.status)
		})
		provider := mustNew(t, Config{URL: server.URL, LookupURL: server.URL + "/lookup/{identity}", Reconcile: LookupByStatus(c.final)})
		found, err := provider.(supervisor.Reconciler).Reconcile(t.Context(), handoffOf(supervisor.IdempotencyReconcileBeforeRetry))
		require.Equal(t, c.want, found, c.status)
		require.Equal(t, c.want == nil, err != nil, c.status)

		report, err := provider.(supervisor.ReceiptObserver).Observe(t.Context(), handoffOf(supervisor.IdempotencyReconcileBeforeRetry), supervisor.Receipt{})
		accepted, ok := c.want.(supervisor.Accepted)
		require.Equal(t, ok, err == nil, c.status)
		require.Equal(t, accepted.Receipt.Report, report, "work without a location is looked up")
	}
	server, _ := work(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	provider := mustNew(t, Config{URL: server.URL, LookupURL: server.URL, Reconcile: LookupByStatus(true)})
	_, err := provider.(supervisor.Reconciler).Reconcile(t.Context(), handoffOf(supervisor.IdempotencyReconcileBeforeRetry))
	require.Error(t, err)
}

func TestCancel(t *testing.T) {
	for status, acknowledged := range map[int]bool{200: true, 202: true, 204: true, 404: true, 410: true, 409: true, 403: false, 429: false, 500: false, 302: false} {
		server, receipt := work(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodDelete || r.URL.Path != "/jobs/7" {
				t.Errorf("%s %s", r.Method, r.URL)
			}
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
		})
		err := mustNew(t, Config{URL: server.URL, CancelByDelete: true}).(supervisor.Canceller).
			Cancel(t.Context(), handoffOf(supervisor.IdempotencyNone), receipt)
		require.Equal(t, acknowledged, err == nil, status)
	}
}

func TestAbilities(t *testing.T) {
	for _, c := range []struct {
		lookup, cancel bool
	}{{false, false}, {false, true}, {true, false}, {true, true}} {
		config := Config{URL: "http://shop", CancelByDelete: c.cancel}
		if c.lookup {
			config.LookupURL, config.Reconcile = "http://shop/{identity}", LookupByStatus(true)
		}
		provider := mustNew(t, config)
		_, observes := provider.(supervisor.ReceiptObserver)
		_, reconciles := provider.(supervisor.Reconciler)
		_, cancels := provider.(supervisor.Canceller)
		require.Equal(t, []bool{true, c.lookup, c.cancel}, []bool{observes, reconciles, cancels})
		pin := supervisor.CapabilityPin{ID: "c", ContractVersion: "1", ContentDigest: "code:c@1"}
		require.NoError(t, supervisor.NewProviderRegistry().Register(pin, provider, supervisor.ProviderOptions{}))
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	lookup := LookupByStatus(true)
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, `URL has the scheme "", must be http or https`},
		{Config{URL: "ftp://shop"}, `URL has the scheme "ftp", must be http or https`},
		{Config{URL: "http:///x"}, `URL is "http:///x", which names no host`},
		{Config{URL: "http://shop\x7f"}, `which is no URL`},
		{Config{URL: "http://user:secret@shop"}, "URL names a user; set Header or Prepare instead"},
		{Config{URL: "http://shop/#f"}, "URL has a fragment, which is never sent"},
		{Config{URL: "http://{tenant}.shop/"}, `URL is "http://{tenant}.shop/", whose host depends on the hand-off`},
		{Config{URL: "http://shop{tenant}/"}, "whose host depends on the hand-off"},
		{Config{URL: "http://shop:{attempt}/"}, "URL"},
		{Config{URL: "{key}"}, "URL"},
		{Config{URL: "http://shop/{teapot}"}, `URL: "http://shop/{teapot}" has the unknown name {teapot}`},
		{Config{URL: "http://shop/{key"}, `without its counterpart`},
		{Config{URL: "http://shop/key}"}, `without its counterpart`},
		{Config{URL: "http://shop", Method: "TRACE"}, `Method is "TRACE", must be POST, PUT, PATCH, DELETE or GET`},
		{Config{URL: "http://shop", Method: "post"}, `Method is "post"`},
		{Config{URL: "http://shop", KeyHeader: "a b"}, `KeyHeader is "a b", which is no name of a header`},
		{Config{URL: "http://shop", IdentityHeader: "host"}, `IdentityHeader is "host", which has a meaning of its own`},
		{Config{URL: "http://shop", KeyHeader: "x-id", IdentityHeader: "X-Id"}, `KeyHeader and IdentityHeader are both "x-id"`},
		{Config{URL: "http://shop", Header: http.Header{"a:b": nil}}, `Header has "a:b", which is no name of a header`},
		{Config{URL: "http://shop", Header: http.Header{"A": {"b\r\nC: d"}}}, `Header "A" has a control character in its value`},
		{Config{URL: "http://shop", Statuses: map[int]Meaning{100: Failed}}, "Statuses has 100, must be between 200 and 599"},
		{Config{URL: "http://shop", Statuses: map[int]Meaning{500: "fine"}}, `Statuses[500] is "fine", which is no meaning`},
		{Config{URL: "http://shop", MaxBody: -1}, "MaxBody is -1, must be between 1 and 1048576"},
		{Config{URL: "http://shop", MaxBody: 1<<20 + 1}, "MaxBody is 1048577"},
		{Config{URL: "http://shop", LookupURL: "http://shop/{identity}"}, "LookupURL and Reconcile go together, one of them is missing"},
		{Config{URL: "http://shop", Reconcile: lookup}, "LookupURL and Reconcile go together"},
		{Config{URL: "http://shop", LookupURL: "shop", Reconcile: lookup}, `LookupURL has the scheme ""`},
	} {
		_, err := New(c.config)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "httpprovider: config: ")
	}
	_, err := New(Config{URL: "x", Method: "x", MaxBody: -1})
	for _, field := range []string{"URL", "Method", "MaxBody"} {
		require.ErrorContains(t, err, field, "all at once")
	}
}

func TestConfigIsCopied(t *testing.T) {
	header := http.Header{"A": {"b"}}
	statuses := map[int]Meaning{500: Failed}
	made := mustNew(t, Config{URL: "http://shop", Header: header, Statuses: statuses})
	header.Set("A", "changed")
	statuses[500] = Succeeded
	own := made.(*provider).config
	require.Equal(t, "b", own.Header.Get("A"))
	require.Equal(t, Failed, own.Statuses[500])
}

func TestRetryAfter(t *testing.T) {
	const date = "Tue, 01 Dec 2026 10:00:00 GMT"
	for text, want := range map[string]time.Duration{
		"":                              0,
		"0":                             0,
		" 7 ":                           7 * time.Second,
		"-7":                            0,
		"1.5":                           0,
		"86401":                         maxRetryAfter,
		"99999999999999999999999999":    maxRetryAfter,
		"Tue, 01 Dec 2026 10:00:09 GMT": 9 * time.Second,
		"Tue, 01 Dec 2026 09:00:00 GMT": 0,
		"Fri, 01 Jan 2100 09:00:00 GMT": maxRetryAfter,
		"soon":                          0,
	} {
		require.Equal(t, want, parseRetryAfter(text, date), text)
	}
	require.Zero(t, parseRetryAfter(date, ""), "whose clock?")
}

func FuzzAnswer(f *testing.F) {
	f.Add(200, "application/json", "", "1", []byte(`{"a":1}`), false)
	f.Add(202, "", "/jobs/1", "Tue, 01 Dec 2026 10:00:00 GMT", []byte("\xc3"), true)
	f.Add(202, "", "//evil/x", "-1", []byte(nil), true)
	f.Add(422, "text/plain", "", "", []byte("\x00\xff"), false)
	f.Fuzz(func(t *testing.T, status int, contentType, location, after string, body []byte, truncated bool) {
		a := &Answer{Status: status, Body: body, Truncated: truncated, URL: &url.URL{Scheme: "https", Host: "shop"}, Header: http.Header{
			"Content-Type": {contentType}, "Location": {location}, "Retry-After": {after}, "Date": {after},
		}, config: &Config{BodyInReason: true}}
		receipt, err := a.Receipt()
		if err == nil {
			require.NoError(t, receipt.Validate(), "what is stored can be stored")
		}
		if receipt.Status == supervisor.ProviderRunning && receipt.Reference != "" {
			require.True(t, strings.HasPrefix(strings.ToLower(receipt.Reference), "https://shop"))
		}
		report, err := a.Report()
		if err == nil {
			require.NoError(t, report.Validate())
		}
		if found, err := LookupByStatus(true)(nil, a); err == nil {
			if accepted, ok := found.(supervisor.Accepted); ok {
				require.NoError(t, accepted.Receipt.Validate())
			}
		}
	})
}

func FuzzEscapeHeader(f *testing.F) {
	f.Add("a", "b")
	f.Add("50%", "50%25")
	f.Fuzz(func(t *testing.T, a, b string) {
		left, right := escapeHeader(a), escapeHeader(b)
		require.Equal(t, a == b, left == right)
		back, err := url.PathUnescape(left)
		require.NoError(t, err)
		require.Equal(t, a, back)
	})
}
