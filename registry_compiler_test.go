package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// stepCompiler is a small real compiler: its specs are lists of arithmetic
// steps on one number, of which each evaluation executes one.
//
//	{"start": 2, "steps": [{"op": "add", "by": 3}, {"op": "multiply", "by": 4}, {"op": "send", "capability": "mail"}]}
//
// The type parameter is the pass context, which the programs do not use.
type stepCompiler[C any] struct {
	compiles atomic.Int64
	// before, if set, runs at the start of every compile.
	before func(ctx context.Context, revision *Revision) error

	mu   sync.Mutex
	seen []Revision
}

// stepProgram is a compiled spec.
type stepProgram[C any] struct {
	specID string
	start  int64
	steps  []step
	pins   map[string]CapabilityPin
}

type step struct {
	Op         string `json:"op"`
	By         int64  `json:"by,omitempty"`
	Capability string `json:"capability,omitempty"`
}

// stepState is what an instance stores between steps.
type stepState struct {
	Next  int   `json:"next"`
	Value int64 `json:"value"`
}

func (c *stepCompiler[C]) Compile(ctx context.Context, revision *Revision) (Driver[C], error) {
	c.compiles.Add(1)
	c.mu.Lock()
	c.seen = append(c.seen, *revision.clone())
	c.mu.Unlock()
	if c.before != nil {
		if err := c.before(ctx, revision); err != nil {
			return nil, err
		}
	}
	var spec struct {
		Start int64  `json:"start"`
		Steps []step `json:"steps"`
	}
	decoder := json.NewDecoder(bytes.NewReader(revision.Spec))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&spec); err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	if len(spec.Steps) == 0 {
		return nil, errors.New("spec has no steps")
	}
	for op, version := range revision.ExpressionVersions {
		if version != "1" {
			return nil, fmt.Errorf("expression %q has version %q, this compiler knows 1", op, version)
		}
	}
	program := &stepProgram[C]{
		specID: revision.SpecID,
		start:  spec.Start,
		steps:  spec.Steps,
		pins:   make(map[string]CapabilityPin, len(revision.Capabilities)),
	}
	for _, pin := range revision.Capabilities {
		program.pins[pin.ID] = pin
	}
	for n, step := range spec.Steps {
		switch step.Op {
		case "add", "multiply":
		case "send":
			if _, pinned := program.pins[step.Capability]; !pinned {
				return nil, fmt.Errorf("steps[%d] sends through %q, which is not pinned", n, step.Capability)
			}
		default:
			return nil, fmt.Errorf("steps[%d] has the unknown operation %q", n, step.Op)
		}
	}
	return program, nil
}

func (p *stepProgram[C]) Name() string                    { return "steps of " + p.specID }
func (p *stepProgram[C]) SpecIDs() []string               { return []string{p.specID} }
func (p *stepProgram[C]) ValidateSpecs() error            { return nil }
func (p *stepProgram[C]) SupportsRevision(*WorkItem) bool { return true }

func (p *stepProgram[C]) Evaluate(_ context.Context, _ C, item *WorkItem) (TransitionCommand, error) {
	state := stepState{Value: p.start}
	if item.StateVersion > 0 {
		if err := json.Unmarshal(item.State, &state); err != nil {
			return TransitionCommand{}, fmt.Errorf("state: %w", err)
		}
	}
	if state.Next >= len(p.steps) {
		return TransitionCommand{}, fmt.Errorf("state: step %d of %d", state.Next, len(p.steps))
	}
	step := p.steps[state.Next]
	var intents []ActionIntent
	switch step.Op {
	case "add":
		state.Value += step.By
	case "multiply":
		state.Value *= step.By
	case "send":
		intents = append(intents, ActionIntent{
			ID:              fmt.Sprintf("%s:%d", item.ID, state.Next),
			TenantID:        item.TenantID,
			InstanceID:      item.ID,
			RunID:           item.RunID,
			Capability:      p.pins[step.Capability],
			IdempotencyKey:  fmt.Sprintf("%s:%d", item.RunID, state.Next),
			State:           ActionPrepared,
			Input:           json.RawMessage(fmt.Sprint(state.Value)),
			Effect:          EffectExternalWrite,
			RetryClass:      IdempotencyNative,
			ControlEpochs:   item.ControlEpochs,
			ResourceScopeID: step.Capability,
			LeaseEpoch:      item.LeaseVersion,
			ActionEpoch:     item.StateVersion,
			CreatedAt:       item.ClaimedAt,
		})
	}
	state.Next++
	var disposition Disposition = Continue{}
	if state.Next == len(p.steps) {
		disposition = Complete{}
	}
	command, err := NewCommand(item, "steps."+step.Op, step, state, disposition)
	command.ActionIntents = intents
	return command, err
}
