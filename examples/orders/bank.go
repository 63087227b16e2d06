package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/httpprovider"
)

// chargeCard is the capability that every order is pinned to.
var chargeCard = supervisor.CapabilityPin{ID: "payments.charge", ContractVersion: "1", ContentDigest: "code:payments.charge@1"}

// network is how the program reaches a payment server of its own: over loopback,
// or in tests over pipes in memory.
type network struct {
	listen func(ctx context.Context) (net.Listener, error)
	// dial is nil for that of package net.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// loopback is the network of this machine.
func loopback() network {
	return network{listen: func(ctx context.Context) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	}}
}

// bank is the program's side of a payment server.
type bank struct {
	url       string
	transport *http.Transport
	// close ends what was begun for it.
	close func() error
}

// openBank reaches the payment server at options.payments, or starts one of its
// own, whose ledger is kept beside the queue.
func openBank(ctx context.Context, options *options, over network) (*bank, error) {
	transport := &http.Transport{DialContext: over.dial, IdleConnTimeout: 4 * time.Second, MaxIdleConnsPerHost: options.workers}
	if options.payments != "" {
		return &bank{url: strings.TrimSuffix(options.payments, "/"), transport: transport, close: func() error {
			transport.CloseIdleConnections()
			return nil
		}}, nil
	}
	path := ""
	if options.db != "" {
		path = ledgerOf(options.db)
	}
	ledger, err := openLedger(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("open the ledger of the payment server: %w", err)
	}
	listener, err := over.listen(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the payment server: %w", err), ledger.close())
	}
	stop := servePayments(context.WithoutCancel(ctx), listener, ledger, options.faults)
	return &bank{url: "http://" + listener.Addr().String(), transport: transport, close: func() error {
		transport.CloseIdleConnections()
		return stop()
	}}, nil
}

// providers is what the dispatcher hands charges to.
func (b *bank) providers(faulty bool) (*supervisor.ProviderRegistry, error) {
	provider, err := httpprovider.New(httpprovider.Config{
		URL:       b.url + "/charges",
		LookupURL: b.url + "/charges/{identity}",
		Reconcile: lookedUp,
		Transport: b.transport,
	})
	if err != nil {
		return nil, err
	}
	options := supervisor.ProviderOptions{
		Timeout: 10 * time.Second,
		Retry:   supervisor.RetryPolicy{Attempts: 100, Delay: time.Second, Multiplier: 1},
		// A bank that is away for a while shall not leave orders to an operator.
		Reconciliations: 1000,
		Breaker:         supervisor.BreakerPolicy{Failures: 100, RestDelay: time.Second},
	}
	if faulty {
		options.Timeout, options.Retry.Delay = 500*time.Millisecond, 100*time.Millisecond
	}
	providers := supervisor.NewProviderRegistry()
	return providers, providers.Register(chargeCard, provider, options)
}

// lookedUp reads the answer to a lookup. Only the server's promise makes a 404
// final: without it a request that is still on its way might arrive later.
func lookedUp(_ *supervisor.Handoff, answer *httpprovider.Answer) (supervisor.Reconciliation, error) {
	switch answer.Status {
	case http.StatusCreated, http.StatusPaymentRequired:
		receipt, err := answer.Receipt()
		return supervisor.Accepted{Receipt: receipt}, err
	case http.StatusNotFound:
		return supervisor.NotAccepted{Final: true}, nil
	}
	return supervisor.CannotTell{}, nil
}

// proof is what the payment server's own ledger says of the orders.
type proof struct {
	Once, Twice, Never int // orders that had to be charged, by how often they were
	WrongCents         int // of those charged once
	Others             int // charges of orders that this run knows nothing of
	Declined           int
	GivenUp            int // identities that were looked up before they came
	Faults             map[fault]int
}

// fine reports whether no order was charged twice and none was lost.
func (p *proof) fine() bool { return p.Twice+p.Never+p.WrongCents == 0 }

// prove holds the ledger against what was due.
func (b *bank) prove(ctx context.Context, due map[string]int64) (*proof, error) {
	charges := make(map[string]int, len(due))
	var p proof
	err := b.get(ctx, "/ledger", func(body *json.Decoder) error {
		var v verdict
		if err := body.Decode(&v); err != nil {
			return err
		}
		switch v.State {
		case stateDeclined:
			p.Declined++
		case stateNever:
			p.GivenUp++
		case stateCharged:
			cents, known := due[v.Order]
			if !known {
				p.Others++
			} else if cents != v.Cents {
				p.WrongCents++
			}
			charges[v.Order]++
			if charges[v.Order] == 2 {
				p.Twice++ // whether it is known or not
			}
		}
		return nil
	})
	if err == nil {
		err = b.get(ctx, "/faults", func(body *json.Decoder) error { return body.Decode(&p.Faults) })
	}
	if err != nil {
		return nil, fmt.Errorf("the proof from the payment server: %w", err)
	}
	for order := range due {
		switch charges[order] {
		case 0:
			p.Never++
		case 1:
			p.Once++
		}
	}
	return &p, nil
}

// get reads the values of an answer to their end.
func (b *bank) get(ctx context.Context, path string, next func(*json.Decoder) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+path, nil)
	if err != nil {
		return err
	}
	response, err := b.transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", path, response.StatusCode)
	}
	for body := json.NewDecoder(response.Body); ; {
		err := next(body)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// lines are the proof for people, none where there was nothing to charge.
func (p *proof) lines() []string {
	if p.Once+p.Twice+p.Never+p.Others == 0 {
		return nil
	}
	lines := []string{fmt.Sprintf("the payment server's ledger: %d orders charged once, %d twice, %d not at all", p.Once, p.Twice, p.Never)}
	if p.WrongCents > 0 {
		lines[0] += fmt.Sprintf(", %d with a wrong amount", p.WrongCents)
	}
	if p.Others > 0 {
		lines[0] += fmt.Sprintf("; %d charges of other runs' orders", p.Others)
	}
	if len(p.Faults) > 0 {
		total := 0
		var ways []string
		for _, way := range slices.Sorted(maps.Keys(p.Faults)) {
			total += p.Faults[way]
			ways = append(ways, fmt.Sprintf("%d %s", p.Faults[way], way))
		}
		lines = append(lines, fmt.Sprintf("since its start it failed %d times: %s", total, strings.Join(ways, ", ")),
			fmt.Sprintf("%d hand-offs were looked up before they came, and given up", p.GivenUp))
	}
	return lines
}
