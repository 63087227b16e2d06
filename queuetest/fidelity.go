package queuetest

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// exactJSON are values that a store, a decoder or a float easily changes.
func exactJSON() []string {
	return []string{
		`{"id":9007199254740993,"neg":-9223372036854775808,"u":18446744073709551615,"f":0.1,"l":[1152921504606846977]}`,
		`{"trailing":1.10,"zero":-0,"exponent":1E+2,"small":1e-400,"large":123456789012345678901234567890.123456789}`,
		`{ "white" :	[ 1 , 2 ] , "order":{"z":1,"a":2} }`,
		`{"twice":1,"twice":2}`,
		`"caf\u00e9 caf` + "\u00e9 cafe\u0301" + ` \ud83d\ude00 ` + "\U0001F600" + ` <>& \u003c \/ \u2028"`,
		`null`, `true`, `0`, `""`, `[]`, `{}`,
		strings.Repeat("[", 1000) + strings.Repeat("]", 1000),
		`"` + strings.Repeat("long ", 200_000) + `"`,
	}
}

func fidelityCases() []testCase {
	return []testCase{
		{
			topic: "fidelity", name: "json-state",
			rule: "structured values are passed through unchanged: Config, State and wakeup payloads come back as they went in",
			run: func(x *trial) {
				for n, value := range exactJSON() {
					instance := x.instance(fmt.Sprint("i", n))
					instance.Config = json.RawMessage(value)
					w := note("w")
					w.Payload = json.RawMessage(value)
					x.add(instance, time.Time{}, w)
					item := x.claimOne()
					x.equalJSON("Config", item.Config, value)
					x.equalJSON("State before the first transition", item.State, value)
					if len(item.Wakeups) != 1 {
						x.Fatalf("the wakeups are %v, want one", wakeupIDs(&item))
					}
					x.equalJSON("the wakeup's payload", item.Wakeups[0].Payload, value)
					x.step(&item, value, supervisor.Continue{})
					again := x.claimOne()
					x.equalJSON("State", again.State, value)
					x.equalJSON("Config after a step", again.Config, value)
					x.step(&again, value, supervisor.Complete{})
				}
			},
		},
		{
			topic: "fidelity", name: "json-events", needs: instances,
			rule: "event payloads and a snapshot's state are passed through unchanged",
			run: func(x *trial) {
				x.due("a")
				values := exactJSON()
				for _, value := range values {
					item := x.claimOne()
					command := x.command(&item, value, supervisor.Continue{})
					command.EventPayload = json.RawMessage(value)
					x.commit(&item, command)
					x.equalJSON("the state of a snapshot", x.get("a").State, value)
				}
				events := x.history("a")
				equal(x, "the number of events", len(events), len(values))
				for n := range min(len(events), len(values)) {
					x.equalJSON("the payload of an event", events[n].Payload, values[n])
				}
			},
		},
		{
			topic: "fidelity", name: "nil-is-null",
			rule: "a nil Config and a nil event payload mean null",
			run: func(x *trial) {
				instance := x.instance("a")
				instance.Config = nil
				x.add(instance, time.Time{})
				item := x.claimOne()
				isNull(x, "Config", item.Config)
				isNull(x, "State before the first transition", item.State)
				command := x.command(&item, `1`, supervisor.Continue{Delay: far})
				command.EventPayload = nil
				x.commit(&item, command)
				if x.Instances != nil {
					for _, event := range x.history("a") {
						isNull(x, "the payload of the event", event.Payload)
					}
				}
			},
		},
		{
			topic: "fidelity", name: "text",
			rule: "text is stored as given: case, white space, line ends and any script",
			run: func(x *trial) {
				for _, text := range []string{
					" leading and trailing ", "tab\tand\nline\r\n", "MiXeD", "caf\u00e9", "cafe\u0301",
					"\U0001F600 \u4f60\u597d \u0645\u0631\u062d\u0628\u0627 \u200f\u202e", "'; DROP TABLE instances; --", `back\slash "quoted" %s $1 ?1`, "\u0001\u001f\u007f\ufeff\ufffd",
				} {
					instance := x.instance("text of" + text)
					instance.SubjectID, instance.WorkflowRevisionDigest = text, text
					instance.DefinitionID, instance.ExecutionProfileID, instance.ExecutionProfileDigest = text, text, text
					instance.KernelABIVersion = text
					instance.CapabilityPins = []supervisor.CapabilityPin{{ID: text, ContractVersion: text, ContentDigest: text}}
					x.add(instance, time.Time{})
					item := x.claimOne()
					sameInstance(x, &item.Instance, &instance)
					command := x.command(&item, `1`, supervisor.Failed{Reason: text})
					command.EventType, command.EventDigest = text, text
					x.commit(&item, command)
					if x.Instances == nil {
						continue
					}
					s := x.get(instance.ID)
					sameInstance(x, &s.Instance, &instance)
					equal(x, "LastError", s.LastError, text)
					for _, event := range x.history(instance.ID) {
						equal(x, "the type and digest of the event", event.Type+event.Digest, text+text)
					}
				}
			},
		},
		{
			topic: "fidelity", name: "large-numbers",
			rule: "revision numbers come back as they went in, or are refused with a clear error",
			run: func(x *trial) {
				for _, revision := range []uint64{1, math.MaxInt32 + 1, math.MaxInt64, math.MaxUint64} {
					instance := x.instance(fmt.Sprint("revision ", revision))
					instance.WorkflowRevision, instance.ExecutionProfileRevision = revision, revision
					if revision > math.MaxInt64 && !x.tryAdd(instance) {
						continue
					}
					if revision <= math.MaxInt64 {
						x.add(instance, time.Time{})
					}
					item := x.claimOne()
					sameInstance(x, &item.Instance, &instance)
				}
			},
		},
		{
			topic: "fidelity", name: "lifecycle", needs: instances,
			rule: "every field of an instance comes back as it went in",
			run: func(x *trial) {
				instance := x.instance("a")
				at := x.now().Add(far)
				instance.Lifecycle = supervisor.LifecyclePolicy{
					StartsAt: at, ExpiresAt: at.Add(far), DrainDeadline: at.Add(2 * far),
					Completion:       supervisor.CompletionPolicy{Kind: supervisor.CompleteAfterMatchedEvaluations, N: math.MaxInt32},
					EventIdleTimeout: math.MaxInt64, ProgressTimeout: time.Nanosecond + far,
					OnExpiry: supervisor.ExpiryDrain,
				}
				instance.CapabilityPins = append(instance.CapabilityPins,
					supervisor.CapabilityPin{ID: "z", ContractVersion: "1", ContentDigest: "1"},
					supervisor.CapabilityPin{ID: "b", ContractVersion: "1", ContentDigest: "1"})
				x.add(instance, time.Time{})
				s := x.get("a")
				sameInstance(x, &s.Instance, &instance)
				if !s.NextDueAt.Equal(at) {
					x.Errorf("NextDueAt is %v, want %v", s.NextDueAt, at)
				}
			},
		},
		{
			topic: "fidelity", name: "instants", needs: instances,
			rule: "instants are kept to the microsecond, in UTC",
			run: func(x *trial) {
				x.due("a")
				for _, at := range []time.Time{
					time.Date(2100, 2, 28, 23, 59, 59, 999_999_000, time.UTC),
					time.Date(2400, 2, 29, 12, 0, 0, 1_000, time.UTC),
					time.Date(2300, 3, 1, 1, 2, 3, 4_000, time.FixedZone("east", 14*3600)),
				} {
					item := x.claimOne()
					x.step(&item, `1`, supervisor.Reschedule{At: at})
					due := x.get("a").NextDueAt
					if !due.Equal(at) || due.Location() != time.UTC {
						x.Errorf("NextDueAt is %v, want %v in UTC", due, at.UTC())
					}
					x.deliver("a", note(at.String()), time.Time{})
				}
			},
		},
	}
}

func isNull(x *trial, what string, raw json.RawMessage) {
	x.Helper()
	if len(raw) > 0 && string(raw) != "null" {
		x.Errorf("%s is %s, want nil or null", what, clip(string(raw)))
	}
}

// tryAdd adds an instance that a queue may refuse.
func (x *trial) tryAdd(instance supervisor.Instance) bool {
	x.Helper()
	if x.Add != nil {
		return x.Add(x.ctx, supervisor.WorkItem{Instance: instance}) == nil
	}
	started, err := x.Instances.Start(x.ctx, instance, time.Time{})
	x.unsupported(err)
	return started
}
