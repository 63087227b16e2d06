package httpprovider_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/httpprovider"
)

// parcelServer takes orders for parcels, and has them on the way a little later.
func parcelServer() *httptest.Server {
	var looks atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /parcels", func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Header.Get("Idempotency-Key"), r.Header.Get("Handoff-Identity"), r.Header.Get("Authorization"))
		w.Header().Set("Location", "/parcels/7")
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("GET /parcels/7", func(w http.ResponseWriter, r *http.Request) {
		if looks.Add(1) == 1 {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"tracking":"RR 7"}`)
	})
	return httptest.NewServer(mux)
}

// The provider of a server that takes repeats under one key as one. A program
// registers it with a [supervisor.ProviderRegistry], and a dispatcher makes these
// calls.
func Example() {
	server := parcelServer()
	defer server.Close()
	provider, err := httpprovider.New(httpprovider.Config{
		URL: server.URL + "/parcels",
		Prepare: func(_ *supervisor.Handoff, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer secret")
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	providers := supervisor.NewProviderRegistry()
	pin := supervisor.CapabilityPin{ID: "parcel.send", ContractVersion: "1", ContentDigest: "code:parcel.send@1"}
	if err := providers.Register(pin, provider, supervisor.ProviderOptions{}); err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	handoff := &supervisor.Handoff{Attempt: 1, Intent: supervisor.ActionIntent{
		ID: "parcel", TenantID: "default", InstanceID: "A-1001", IdempotencyKey: "A-1001/parcel",
		Capability: pin, Input: json.RawMessage(`{"to":"Ada"}`),
		Effect: supervisor.EffectExternalWrite, RetryClass: supervisor.IdempotencyNative,
	}}
	receipt, err := provider.Dispatch(ctx, handoff)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(receipt.Status, "look again after", receipt.After)
	observer, ok := provider.(supervisor.ReceiptObserver)
	for report := receipt.Report; ok && !report.Terminal(); {
		if report, err = observer.Observe(ctx, handoff, receipt); err != nil {
			log.Fatal(err)
		}
		fmt.Println(report.Status)
		receipt.Report = report
	}
	fmt.Println(string(receipt.Output))
	// Output:
	// A-1001/parcel default/A-1001/parcel/1 Bearer secret
	// running look again after 2s
	// running
	// succeeded
	// {"tracking":"RR 7"}
}
