package httpprovider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/internal/providerkit"
)

// provider is a Provider and a ReceiptObserver. It never changes after New.
type provider struct {
	config      Config
	client      *http.Client
	url, lookup providerkit.Template
}

// reconciler and canceller add the abilities that a config asks for.
type (
	reconciler struct{ *provider }
	canceller  struct{ *provider }
)

// Dispatch sends the request of a hand-off.
func (p *provider) Dispatch(ctx context.Context, handoff *supervisor.Handoff) (supervisor.Receipt, error) {
	if p.config.Method == http.MethodGet && handoff.Intent.Effect != supervisor.EffectPure && handoff.Intent.Effect != supervisor.EffectRead {
		// Transports and caches repeat a GET as they like.
		return supervisor.Receipt{}, supervisor.Refused(fmt.Errorf("httpprovider: GET for an intent of effect %q", handoff.Intent.Effect))
	}
	target, err := expandURL(&p.url, handoff)
	if err != nil {
		return supervisor.Receipt{}, supervisor.Refused(err)
	}
	var content *input
	if p.config.Method != http.MethodGet {
		content = newInput(handoff)
	}
	var sending progress
	request, err := p.request(sending.watch(ctx), p.config.Method, target, handoff, content)
	if err != nil {
		return supervisor.Receipt{}, supervisor.NotSent(err)
	}
	answer, err := p.do(request)
	switch {
	case answer == nil && sending.nothingSent() && !content.touched():
		return supervisor.Receipt{}, supervisor.NotSent(err)
	case answer == nil:
		return supervisor.Receipt{}, err
	case err != nil && (p.config.Receipt != nil || answer.Meaning() == Succeeded):
		// Half an answer: a success without its output is none yet.
		return supervisor.Receipt{}, err
	case p.config.Receipt != nil:
		return p.config.Receipt(handoff, answer)
	}
	return answer.Receipt()
}

// Observe asks about accepted work at its location, or, where it has none, by a
// lookup.
func (p *provider) Observe(ctx context.Context, handoff *supervisor.Handoff, receipt supervisor.Receipt) (supervisor.Report, error) {
	if receipt.Reference == "" && p.config.LookupURL != "" {
		found, err := (reconciler{p}).Reconcile(ctx, handoff)
		if accepted, ok := found.(supervisor.Accepted); ok && err == nil {
			return accepted.Receipt.Report, nil
		}
		return supervisor.Report{}, errors.Join(errors.New("httpprovider: the lookup does not tell"), err)
	}
	target, ok := p.reference(handoff, &receipt)
	if !ok {
		// Nobody can be asked, now or later.
		return supervisor.Report{Status: supervisor.ProviderUnknown}, nil
	}
	answer, err := p.ask(ctx, http.MethodGet, target, handoff)
	if err != nil {
		return supervisor.Report{}, err
	}
	if p.config.Report != nil {
		return p.config.Report(handoff, answer)
	}
	return answer.Report()
}

// Reconcile looks the hand-off up.
func (p reconciler) Reconcile(ctx context.Context, handoff *supervisor.Handoff) (supervisor.Reconciliation, error) {
	target, err := expandURL(&p.lookup, handoff)
	if err != nil {
		return nil, err
	}
	answer, err := p.ask(ctx, http.MethodGet, target, handoff)
	if err != nil {
		return nil, err
	}
	return p.config.Reconcile(handoff, answer)
}

// Cancel asks to stop accepted work by DELETE of its location. An answer that it
// is gone, or can no longer be stopped, is an acknowledgement too.
func (p canceller) Cancel(ctx context.Context, handoff *supervisor.Handoff, receipt supervisor.Receipt) error {
	target, ok := p.reference(handoff, &receipt)
	if !ok {
		return errors.New("httpprovider: the work has no location at the server that it was sent to")
	}
	answer, err := p.ask(ctx, http.MethodDelete, target, handoff)
	if answer == nil {
		return err
	}
	switch meaning := meaningOf(answer.Status); {
	case meaning == Succeeded, meaning == Running,
		answer.Status == http.StatusNotFound, answer.Status == http.StatusGone, answer.Status == http.StatusConflict:
		return nil
	}
	return answer.err()
}

// reference is the location of accepted work, which has to be at the server that
// the work was sent to: requests carry what is secret to others.
func (p *provider) reference(handoff *supervisor.Handoff, receipt *supervisor.Receipt) (target string, ok bool) {
	text, err := expandURL(&p.url, handoff)
	if err != nil {
		return "", false
	}
	server, err := url.Parse(text)
	if err != nil {
		return "", false
	}
	location, err := url.Parse(receipt.Reference)
	if err != nil || !sameOrigin(location, server) {
		return "", false
	}
	return location.String(), true
}

// ask makes a request that changes nothing or may be repeated. An answer beside
// an error is one whose body did not arrive whole.
func (p *provider) ask(ctx context.Context, method, target string, handoff *supervisor.Handoff) (*Answer, error) {
	request, err := p.request(ctx, method, target, handoff, nil)
	if err != nil {
		return nil, err
	}
	return p.do(request)
}

// request makes a request; content nil is none.
func (p *provider) request(ctx context.Context, method, target string, handoff *supervisor.Handoff, content *input) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, fmt.Errorf("httpprovider: %w", err)
	}
	if p.config.Header != nil {
		request.Header = p.config.Header.Clone()
	}
	if content != nil {
		// GetBody stays nil. With it the transport would send a request again that
		// has an Idempotency-Key, on a connection that broke after it was written.
		request.Body, request.ContentLength = content, int64(content.rest.Len())
		if request.Header.Get("Content-Type") == "" {
			request.Header.Set("Content-Type", "application/json")
		}
	}
	if p.config.Prepare != nil {
		if err := p.config.Prepare(handoff, request); err != nil {
			return nil, fmt.Errorf("httpprovider: prepare: %w", err)
		}
	}
	request.Header.Set(p.config.KeyHeader, escapeHeader(handoff.Intent.IdempotencyKey))
	request.Header.Set(p.config.IdentityHeader, handoff.Identity())
	return request, nil
}

// do sends a request and reads the answer. Without an answer there is an error;
// beside one the error says that its body did not arrive whole.
func (p *provider) do(request *http.Request) (*Answer, error) {
	response, err := p.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("httpprovider: %w", err)
	}
	defer response.Body.Close()
	answer := &Answer{Status: response.StatusCode, Header: response.Header, URL: response.Request.URL, config: &p.config}
	answer.Body, err = io.ReadAll(io.LimitReader(response.Body, p.config.MaxBody+1))
	if int64(len(answer.Body)) > p.config.MaxBody {
		answer.Body, answer.Truncated = answer.Body[:p.config.MaxBody], true
	}
	if err != nil {
		return answer, fmt.Errorf("httpprovider: body of answer %d: %w", answer.Status, err)
	}
	return answer, nil
}

// followReads follows redirects of requests that change nothing, at one server.
func followReads(next *http.Request, before []*http.Request) error {
	const maxRedirects = 10
	if before[0].Method != http.MethodGet || len(before) > maxRedirects || !sameOrigin(next.URL, before[0].URL) {
		return http.ErrUseLastResponse
	}
	return nil
}

// expandURL makes the URL of a hand-off.
func expandURL(template *providerkit.Template, handoff *supervisor.Handoff) (string, error) {
	text, err := template.Expand(handoff, escapeURL)
	if err != nil {
		return "", fmt.Errorf("httpprovider: %w", err)
	}
	return text, nil
}

// escapeURL escapes everything but the characters that mean nothing anywhere in
// a URL. A segment of dots means something even when it is escaped.
func escapeURL(text string) (string, error) {
	if text == "." || text == ".." {
		return "", fmt.Errorf("%q cannot be part of a URL", text)
	}
	return percent(text, func(c byte) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("-_.~", c) >= 0
	}), nil
}

// escapeHeader makes any text the value of a header, different ones different.
func escapeHeader(text string) string {
	return percent(text, func(c byte) bool { return c > ' ' && c < 0x7f && c != '%' })
}

func percent(text string, plain func(byte) bool) string {
	const digits = "0123456789ABCDEF"
	var escaped strings.Builder
	for n := range len(text) {
		if c := text[n]; plain(c) {
			escaped.WriteByte(c)
		} else {
			escaped.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return escaped.String()
}

// progress is how far the sending of a request has come, by the trace of the
// transport, whose goroutines call it.
type progress struct{ asked, connected atomic.Bool }

// watch returns a context whose request is followed.
func (s *progress) watch(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:      func(string) { s.asked.Store(true) },
		GotConn:      func(httptrace.GotConnInfo) { s.connected.Store(true) },
		WroteHeaders: func() { s.connected.Store(true) },
		WroteRequest: func(httptrace.WroteRequestInfo) { s.connected.Store(true) },
	})
}

// nothingSent proves that no byte of the request left: the transport asked for a
// connection and never got one. It is told of the connection before it writes, so
// that no race is lost; what happens later on the connection proves nothing. A
// transport that tells nothing proves nothing.
func (s *progress) nothingSent() bool { return s.asked.Load() && !s.connected.Load() }

// input is the body of a request. It remembers that it was read, also by a
// transport that has no trace.
type input struct {
	rest strings.Reader
	read atomic.Bool
}

func newInput(handoff *supervisor.Handoff) *input {
	content := new(input)
	text := "null"
	if len(handoff.Intent.Input) > 0 {
		text = string(handoff.Intent.Input)
	}
	content.rest.Reset(text)
	return content
}

// Read is that of [io.Reader].
func (i *input) Read(p []byte) (int, error) {
	i.read.Store(true)
	return i.rest.Read(p)
}

// Close does nothing: there is nothing to give back.
func (i *input) Close() error { return nil }

func (i *input) touched() bool { return i != nil && i.read.Load() }
