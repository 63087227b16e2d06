package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// payments is the payment server: a make-believe one behind real HTTP. It does
// not know idempotency keys: asked twice under two identities it charges twice.
// What it does know is the identity of a hand-off:
//
//	POST /charges             charges a card, once for each identity
//	GET  /charges/{identity}  tells what was answered to it. One that has not come
//	                          is 404, and will never be accepted any more
//	GET  /ledger              every verdict, a line each
//	GET  /faults              how often it failed on purpose, in which ways
//
// With faults it fails in every way that a server can, most of the time.
type payments struct {
	ledger ledger
	faulty bool
	// running ends with the server; a request may live longer than its client.
	running context.Context

	mu     sync.Mutex
	faults map[fault]int
}

// fault is how the server fails.
type fault string

const (
	faultNone fault = ""
	// faultBefore: it hangs up and has done nothing.
	faultBefore fault = "hung up before accepting"
	// faultLate: the request lies about until its client has given up, and is
	// taken up then. A lookup in the meantime wins.
	faultLate fault = "taken up late"
	// faultAfter: it hangs up and has charged the card.
	faultAfter fault = "hung up after accepting"
	// faultSilent: it has charged the card and never answers.
	faultSilent fault = "silent after accepting"
	// faultTwice: it answers twice.
	faultTwice fault = "answered twice"
	// faultError: it has charged the card and says that it has failed.
	faultError fault = "error 500 after accepting"
)

// chargeRequest is the body of a request: the input of an intent.
type chargeRequest struct {
	Order string `json:"order"`
	Cents int64  `json:"cents"`
	Card  card   `json:"card,omitempty"`
}

// servePayments serves on a listener until stop is called, which returns when
// nothing of the server is left.
func servePayments(ctx context.Context, listener net.Listener, ledger ledger, faulty bool) (stop func() error) {
	running, end := context.WithCancel(ctx)
	p := &payments{ledger: ledger, faulty: faulty, running: running, faults: make(map[fault]int)}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /charges", p.charge)
	routes.HandleFunc("GET /charges/{identity}", p.lookUp)
	routes.HandleFunc("GET /ledger", p.tell)
	routes.HandleFunc("GET /faults", p.confess)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: routes}
	var serving sync.WaitGroup
	var served error
	serving.Go(func() { served = server.Serve(listener) }) // ends with Close
	return func() error {
		end() // what still hangs goes on
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err := server.Shutdown(patience)
		serving.Wait()
		if errors.Is(served, http.ErrServerClosed) {
			served = nil
		}
		return errors.Join(err, served, ledger.close())
	}
}

func (p *payments) charge(w http.ResponseWriter, r *http.Request) {
	var asked chargeRequest
	identity := r.Header.Get("Handoff-Identity")
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLine))
	if err == nil {
		err = json.Unmarshal(body, &asked)
	}
	if err != nil || identity == "" || asked.Order == "" || asked.Cents <= 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	// The bank is busy for the first attempts.
	attempt, err := strconv.Atoi(identity[strings.LastIndexByte(identity, '/')+1:])
	if asked.Card == cardBusy && err == nil && attempt <= busyAnswers {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}

	failing := p.fault(60, faultBefore, faultLate, faultAfter, faultSilent, faultTwice, faultError)
	switch failing {
	case faultBefore:
		panic(http.ErrAbortHandler) // which hangs up
	case faultLate:
		if !p.outlive(r) || !p.wait(rand.N(maxLateness)) {
			return
		}
	}
	state := stateCharged
	if asked.Card == cardDeclined {
		state = stateDeclined
	}
	// Its client may be gone; that changes nothing.
	v, err := p.ledger.decide(p.running, verdict{Identity: identity, Order: asked.Order, Cents: asked.Cents, State: state})
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	switch failing {
	case faultAfter:
		panic(http.ErrAbortHandler)
	case faultSilent:
		p.outlive(r)
	case faultError:
		w.WriteHeader(http.StatusInternalServerError)
	case faultTwice:
		answerTwice(w, &v)
	default:
		answer(w, &v)
	}
}

// lookUp tells what was answered to an identity. It makes sure first that the
// answer stays true.
func (p *payments) lookUp(w http.ResponseWriter, r *http.Request) {
	failing := p.fault(20, faultBefore, faultAfter, faultError)
	if failing == faultBefore {
		panic(http.ErrAbortHandler)
	}
	v, err := p.ledger.decide(p.running, verdict{Identity: r.PathValue("identity"), State: stateNever})
	switch {
	case failing == faultAfter:
		panic(http.ErrAbortHandler)
	case err != nil || failing == faultError:
		w.WriteHeader(http.StatusInternalServerError)
	case v.State == stateNever:
		w.WriteHeader(http.StatusNotFound)
	default:
		answer(w, &v)
	}
}

// answer says the same about a verdict each time it is asked for.
func answer(w http.ResponseWriter, v *verdict) {
	status, body := answerTo(v)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body) // the client may be gone
}

func answerTo(v *verdict) (status int, body string) {
	switch v.State {
	case stateCharged:
		return http.StatusCreated, fmt.Sprintf(`{"cents":%d}`, v.Cents)
	case stateDeclined:
		return http.StatusPaymentRequired, `{"error":"declined"}`
	}
	return http.StatusConflict, `{"error":"this identity was given up"}`
}

// answerTwice puts the same answer on the wire two times.
func answerTwice(w http.ResponseWriter, v *verdict) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	status, body := answerTo(v)
	text := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), len(body), body)
	_, _ = io.WriteString(conn, text+text)
}

// maxLateness is how late a request may be taken up after its client has left:
// some come before the client has looked them up, some after.
const maxLateness = 3 * time.Second

// fault chooses one of the ways to fail, in some percent of all cases, or
// none.
func (p *payments) fault(percent int, ways ...fault) fault {
	if !p.faulty || rand.IntN(100) >= percent {
		return faultNone
	}
	chosen := ways[rand.IntN(len(ways))]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[chosen]++
	return chosen
}

// outlive blocks until the client of a request has left; false where the server
// ended first.
func (p *payments) outlive(r *http.Request) bool {
	select {
	case <-r.Context().Done():
		return true
	case <-p.running.Done():
		return false
	}
}

// wait is false where the server ended first.
func (p *payments) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.running.Done():
		return false
	}
}

func (p *payments) tell(w http.ResponseWriter, r *http.Request) {
	encoder := json.NewEncoder(w)
	for v, err := range p.ledger.all(r.Context()) {
		if err != nil || encoder.Encode(v) != nil {
			panic(http.ErrAbortHandler) // so that nobody takes a part for the whole
		}
	}
}

func (p *payments) confess(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = json.NewEncoder(w).Encode(p.faults)
}
