package httpprovider

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/internal/providerkit"
)

// Answer is what a server answered. It belongs to whom it is given.
type Answer struct {
	Status int
	Header http.Header
	// Body is what was read of it; Truncated says that there was more.
	Body      []byte
	Truncated bool
	// URL is that of the request, against which a Location is resolved.
	URL *url.URL

	config *Config // nil: the defaults
}

// Meaning is what the answer to a hand-off means by its status: as Config.Statuses
// says, else as the table in the package documentation does.
func (a *Answer) Meaning() Meaning {
	if a.config != nil {
		if meaning, ok := a.config.Statuses[a.Status]; ok {
			return meaning
		}
	}
	return meaningOf(a.Status)
}

// meaningOf is the table. What is not in it is ambiguous.
func meaningOf(status int) Meaning {
	switch status {
	case http.StatusOK, http.StatusCreated, http.StatusNonAuthoritativeInfo, http.StatusNoContent, http.StatusResetContent:
		return Succeeded
	case http.StatusAccepted:
		return Running
	case http.StatusBadRequest, http.StatusPaymentRequired, http.StatusGone, http.StatusPreconditionFailed,
		http.StatusUnprocessableEntity:
		return Failed
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
		http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusLengthRequired, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong,
		http.StatusUnsupportedMediaType, http.StatusExpectationFailed, http.StatusMisdirectedRequest,
		http.StatusUpgradeRequired, http.StatusPreconditionRequired, http.StatusRequestHeaderFieldsTooLarge,
		http.StatusUnavailableForLegalReasons:
		return Refused
	case http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusTooEarly, http.StatusTooManyRequests:
		return NotSent
	}
	return Ambiguous
}

// Receipt reads the answer to a hand-off by its Meaning. The error is one that
// [supervisor.Provider] may return.
func (a *Answer) Receipt() (supervisor.Receipt, error) {
	switch a.Meaning() {
	case Succeeded:
		return supervisor.Receipt{Report: a.success()}, nil
	case Running:
		return a.running(), nil
	case Failed:
		return supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderFailed, Reason: a.reason()}}, nil
	case Refused:
		return supervisor.Receipt{}, supervisor.Refused(a.err())
	case NotSent:
		return supervisor.Receipt{}, supervisor.NotSent(a.err())
	}
	return supervisor.Receipt{}, a.err()
}

func (a *Answer) success() supervisor.Report {
	return supervisor.Report{Status: supervisor.ProviderSucceeded, Output: a.output()}
}

// output is the body, wrapped where it is not JSON.
func (a *Answer) output() []byte {
	contentType := a.Header.Get("Content-Type")
	return providerkit.Output(a.Body, isJSON(contentType), contentType, a.Truncated)
}

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// running is the receipt of work that goes on. Where nobody can be asked about
// it its outcome will never be known.
func (a *Answer) running() supervisor.Receipt {
	receipt := supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderRunning, After: a.retryAfter()}}
	location, own := a.location()
	receipt.Reference = location
	if !own && (location != "" || a.config == nil || a.config.LookupURL == "") {
		receipt.Report = supervisor.Report{Status: supervisor.ProviderUnknown}
	}
	return receipt
}

// location is where the work can be looked at; own says that it is at the server
// that the request went to. One that cannot be stored is none.
func (a *Answer) location() (location string, own bool) {
	given := a.Header.Get("Location")
	if given == "" || a.URL == nil {
		return "", false
	}
	parsed, err := a.URL.Parse(given)
	if err != nil {
		return "", false
	}
	parsed.Fragment = ""
	receipt := supervisor.Receipt{Reference: parsed.String()}
	if receipt.Validate() != nil {
		return "", false
	}
	return receipt.Reference, sameOrigin(parsed, a.URL)
}

// sameOrigin reports whether two URLs are of one server.
func sameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b) &&
		a.User == nil
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case strings.EqualFold(u.Scheme, "https"):
		return "443"
	}
	return "80"
}

// maxBodyReason bounds the text of a body in a reason, in bytes.
const maxBodyReason = 1024

// reason is the code of the status, and the body where that is asked for.
func (a *Answer) reason() string {
	reason := "http_" + strconv.Itoa(a.Status)
	if a.config != nil && a.config.BodyInReason && len(a.Body) > 0 {
		reason += ": " + strings.TrimSpace(providerkit.Text(a.Body, maxBodyReason))
	}
	return reason
}

func (a *Answer) err() error {
	return &StatusError{Status: a.Status}
}

// StatusError is an answer that is no receipt. It holds nothing of the server's
// own text.
type StatusError struct{ Status int }

func (e *StatusError) Error() string {
	return fmt.Sprintf("httpprovider: answer %d %s", e.Status, http.StatusText(e.Status))
}

// Report reads an answer about accepted work by its status: 200 to 205, but 202,
// is a success with the body as output, 202 is running, 404 and 410 are unknown.
// 425, 429 and 503 with Retry-After ask to come back later; anything else is an
// error, which says nothing of the work.
func (a *Answer) Report() (supervisor.Report, error) {
	switch meaningOf(a.Status) {
	case Succeeded:
		return a.success(), nil
	case Running:
		return supervisor.Report{Status: supervisor.ProviderRunning, After: a.retryAfter()}, nil
	}
	switch a.Status {
	case http.StatusNotFound, http.StatusGone:
		return supervisor.Report{Status: supervisor.ProviderUnknown}, nil
	case http.StatusTooEarly, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if after := a.retryAfter(); after > 0 {
			return supervisor.Report{Status: supervisor.ProviderRunning, After: after}, nil
		}
	}
	return supervisor.Report{}, a.err()
}

// LookupByStatus reads answers to lookups by their status: 200 to 205, but 202,
// is an accepted hand-off that succeeded, with the body as output; 202 one that
// runs; and 404 one that was not accepted. Anything else cannot tell. It is wrong
// for a search that answers 200 with an empty list.
//
// final says that the server, having answered 404, will never accept that
// identity. Without that promise nothing is repeated on the strength of a 404.
func LookupByStatus(final bool) func(*supervisor.Handoff, *Answer) (supervisor.Reconciliation, error) {
	return func(_ *supervisor.Handoff, a *Answer) (supervisor.Reconciliation, error) {
		switch meaningOf(a.Status) {
		case Succeeded:
			return supervisor.Accepted{Receipt: supervisor.Receipt{Report: a.success()}}, nil
		case Running:
			return supervisor.Accepted{Receipt: a.running()}, nil
		}
		if a.Status == http.StatusNotFound {
			return supervisor.NotAccepted{Final: final}, nil
		}
		return nil, a.err()
	}
}

// maxRetryAfter bounds what a server may ask for.
const maxRetryAfter = 24 * time.Hour

// retryAfter is what the answer asks to wait; zero where it does not ask, or not
// in words that mean anything.
func (a *Answer) retryAfter() time.Duration {
	return parseRetryAfter(a.Header.Get("Retry-After"), a.Header.Get("Date"))
}

// parseRetryAfter reads a number of seconds, or an instant by the clock of the
// server, whose date the answer has.
func parseRetryAfter(text, date string) time.Duration {
	text = strings.TrimSpace(text)
	seconds, err := strconv.ParseUint(text, 10, 64)
	switch {
	case err == nil:
		return min(time.Duration(min(seconds, uint64(maxRetryAfter/time.Second)))*time.Second, maxRetryAfter)
	case errors.Is(err, strconv.ErrRange):
		return maxRetryAfter
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(date)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}
