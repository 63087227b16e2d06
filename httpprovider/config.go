package httpprovider

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/internal/providerkit"
)

// Config says how hand-offs become requests, and answers receipts. URL is
// required; everything else has a default.
//
// URL and LookupURL are templates: {tenant}, {instance}, {intent}, {attempt},
// {key} and {identity} stand for parts of the hand-off, escaped so that each is
// one segment of a path or one value of a query. The host is never a template.
type Config struct {
	// Method of the request: POST, PUT, PATCH, DELETE or GET. Default POST. The
	// body is the intent's input; GET has none, and carries out nothing but pure
	// and read intents.
	Method string
	// URL to send to, absolute, http or https, without a user or a fragment.
	URL string
	// Header is sent with every request, those that observe, look up and cancel
	// included. The Content-Type of a body is application/json, unless it says
	// otherwise.
	Header http.Header
	// Prepare changes a request before it is sent, for example to sign it; its
	// method tells what it is for. It is called by many goroutines at once. Its
	// error is proof that nothing was sent, and with [supervisor.Refused] that
	// nothing shall be. It must neither read nor replace the body, and the two
	// headers below are set after it. Nil for none.
	Prepare func(handoff *supervisor.Handoff, request *http.Request) error

	// KeyHeader carries the intent's idempotency key. Default "Idempotency-Key".
	// Characters that are not visible ASCII, and "%", are percent-escaped.
	KeyHeader string
	// IdentityHeader carries the identity of the hand-off as it is. Default
	// "Handoff-Identity".
	IdentityHeader string

	// Statuses changes what answers with a status mean, where what a server
	// promises is more than the table of the package grants it.
	Statuses map[int]Meaning
	// Receipt reads the answers to hand-offs instead of [Answer.Receipt], which
	// it may call. Its error means what that of [supervisor.Provider] does. Nil
	// for none.
	Receipt func(handoff *supervisor.Handoff, answer *Answer) (supervisor.Receipt, error)
	// Report reads the answers about accepted work instead of [Answer.Report],
	// which it may call. Servers that answer 200 for work that runs on need one.
	// Nil for none.
	Report func(handoff *supervisor.Handoff, answer *Answer) (supervisor.Report, error)
	// BodyInReason lets the text of a refusal, up to 1 KiB, become part of the
	// reason that the instance is told. Else it is the status alone.
	BodyInReason bool
	// MaxBody is how many bytes of an answer are read. Default 64 KiB, at most
	// [supervisor.MaxOutputBytes].
	MaxBody int64

	// LookupURL makes the provider a [supervisor.Reconciler]: GET of it tells
	// whether a hand-off was accepted. Empty for none.
	LookupURL string
	// Reconcile reads the answers to lookups; required with LookupURL, since only
	// you know what your server promises. [LookupByStatus] is one.
	Reconcile func(handoff *supervisor.Handoff, answer *Answer) (supervisor.Reconciliation, error)
	// CancelByDelete makes the provider a [supervisor.Canceller]: DELETE of the
	// location of accepted work asks to stop it.
	CancelByDelete bool

	// Transport sends the requests; it must not repeat any by itself. Default is
	// one like [http.DefaultTransport] that keeps idle connections for 4 s: less
	// than servers do, so that few hand-offs meet a connection that the server
	// is just closing, and become ambiguous by it.
	Transport http.RoundTripper
}

// Meaning is what an answer to a hand-off means.
type Meaning string

// The meanings.
const (
	// Succeeded: the effect happened; the body is its output.
	Succeeded Meaning = "succeeded"
	// Running: it was accepted and goes on; the Location is where to look.
	Running Meaning = "running"
	// Failed: the server has judged the intent, and there is no effect of any
	// request under its key. The instance is told the status.
	Failed Meaning = "failed"
	// Refused: this request was turned away for good, by something that need not
	// have looked at the key. It proves nothing of an earlier, ambiguous one.
	Refused Meaning = "refused"
	// NotSent: as refused, and another request may be served.
	NotSent Meaning = "not_sent"
	// Ambiguous: nobody knows.
	Ambiguous Meaning = "ambiguous"
)

func (m Meaning) valid() bool {
	switch m {
	case Succeeded, Running, Failed, Refused, NotSent, Ambiguous:
		return true
	}
	return false
}

const (
	defaultKeyHeader      = "Idempotency-Key"
	defaultIdentityHeader = "Handoff-Identity"
	defaultMaxBody        = 64 << 10
	idleConnTimeout       = 4 * time.Second
	maxResponseHeader     = 64 << 10
)

// New returns a provider. It also observes; it reconciles with LookupURL alone,
// and cancels with CancelByDelete alone. The error names everything that is
// wrong with the config.
func New(config Config) (supervisor.Provider, error) {
	p, err := newProvider(config)
	if err != nil {
		return nil, err
	}
	// Abilities that it has not must not be seen.
	switch {
	case config.LookupURL != "" && config.CancelByDelete:
		return struct {
			*provider
			reconciler
			canceller
		}{p, reconciler{p}, canceller{p}}, nil
	case config.LookupURL != "":
		return struct {
			*provider
			reconciler
		}{p, reconciler{p}}, nil
	case config.CancelByDelete:
		return struct {
			*provider
			canceller
		}{p, canceller{p}}, nil
	}
	return p, nil
}

func newProvider(config Config) (*provider, error) {
	p := &provider{config: config}
	c := &p.config
	c.Header, c.Statuses = c.Header.Clone(), maps.Clone(c.Statuses)
	if c.Method == "" {
		c.Method = http.MethodPost
	}
	if c.KeyHeader == "" {
		c.KeyHeader = defaultKeyHeader
	}
	if c.IdentityHeader == "" {
		c.IdentityHeader = defaultIdentityHeader
	}
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	if err := errors.Join(append(c.faults(), p.parse())...); err != nil {
		return nil, fmt.Errorf("httpprovider: config: %w", err)
	}
	if c.Transport == nil {
		c.Transport = newTransport()
	}
	p.client = &http.Client{Transport: c.Transport, CheckRedirect: followReads}
	return p, nil
}

func newTransport() http.RoundTripper {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if shared, ok := http.DefaultTransport.(*http.Transport); ok {
		transport = shared.Clone()
	}
	transport.IdleConnTimeout = idleConnTimeout
	transport.MaxResponseHeaderBytes = maxResponseHeader
	return transport
}

// faults reports what is wrong with the fields that are no templates.
func (c *Config) faults() []error {
	var errs []error
	switch c.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodGet:
	default:
		errs = append(errs, fmt.Errorf("Method is %q, must be POST, PUT, PATCH, DELETE or GET", c.Method))
	}
	for _, header := range [...]struct{ field, name string }{
		{"KeyHeader", c.KeyHeader}, {"IdentityHeader", c.IdentityHeader},
	} {
		switch {
		case !isToken(header.name):
			errs = append(errs, fmt.Errorf("%s is %q, which is no name of a header", header.field, header.name))
		case reserved(header.name):
			errs = append(errs, fmt.Errorf("%s is %q, which has a meaning of its own", header.field, header.name))
		}
	}
	if textproto.CanonicalMIMEHeaderKey(c.KeyHeader) == textproto.CanonicalMIMEHeaderKey(c.IdentityHeader) {
		errs = append(errs, fmt.Errorf("KeyHeader and IdentityHeader are both %q", c.KeyHeader))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Header)) {
		if !isToken(name) {
			errs = append(errs, fmt.Errorf("Header has %q, which is no name of a header", name))
		}
		for _, value := range c.Header[name] {
			if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
				errs = append(errs, fmt.Errorf("Header %q has a control character in its value", name))
			}
		}
	}
	for _, status := range slices.Sorted(maps.Keys(c.Statuses)) {
		meaning := c.Statuses[status]
		if status < 200 || status > 599 {
			errs = append(errs, fmt.Errorf("Statuses has %d, must be between 200 and 599", status))
		}
		if !meaning.valid() {
			errs = append(errs, fmt.Errorf("Statuses[%d] is %q, which is no meaning", status, meaning))
		}
	}
	if c.MaxBody < 0 || c.MaxBody > supervisor.MaxOutputBytes {
		errs = append(errs, fmt.Errorf("MaxBody is %d, must be between 1 and %d", c.MaxBody, supervisor.MaxOutputBytes))
	}
	if (c.LookupURL == "") != (c.Reconcile == nil) {
		errs = append(errs, errors.New("LookupURL and Reconcile go together, one of them is missing"))
	}
	return errs
}

// parse reads the templates.
func (p *provider) parse() error {
	var urlErr, lookupErr error
	p.url, urlErr = parseURL("URL", p.config.URL)
	if p.config.LookupURL != "" {
		p.lookup, lookupErr = parseURL("LookupURL", p.config.LookupURL)
	}
	return errors.Join(urlErr, lookupErr)
}

func parseURL(field, text string) (providerkit.Template, error) {
	template, err := providerkit.ParseTemplate(text)
	if err != nil {
		return template, fmt.Errorf("%s: %w", field, err)
	}
	sample, err := template.Expand(new(supervisor.Handoff), func(string) (string, error) { return "x", nil })
	if err != nil {
		return template, fmt.Errorf("%s: %w", field, err)
	}
	parsed, err := url.Parse(sample)
	if err != nil {
		// The error of url.Parse repeats the whole text, which the caller knows.
		return template, fmt.Errorf("%s is %q, which is no URL", field, text)
	}
	prefix, err := url.Parse(template.Prefix())
	switch {
	case parsed.Scheme != "http" && parsed.Scheme != "https":
		return template, fmt.Errorf("%s has the scheme %q, must be http or https", field, parsed.Scheme)
	case parsed.Host == "":
		return template, fmt.Errorf("%s is %q, which names no host", field, text)
	case parsed.User != nil:
		return template, fmt.Errorf("%s names a user; set Header or Prepare instead", field)
	case parsed.Fragment != "" || strings.Contains(text, "#"):
		return template, fmt.Errorf("%s has a fragment, which is never sent", field)
	case sample != template.Prefix() && (err != nil || prefix.Host != parsed.Host || prefix.Path == "" && prefix.RawQuery == "" && !strings.HasSuffix(template.Prefix(), "?")):
		return template, fmt.Errorf("%s is %q, whose host depends on the hand-off", field, text)
	}
	return template, nil
}

// isToken reports whether a text can be the name of a header.
func isToken(name string) bool {
	for n := range len(name) {
		c := name[n]
		alphanumeric := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !alphanumeric && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return name != ""
}

// reserved reports whether a header is the transport's own.
func reserved(name string) bool {
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Content-Type", "Expect", "Upgrade":
		return true
	}
	return false
}
