package commandprovider

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/internal/providerkit"
)

// Config says how hand-offs become processes. Command is required; everything
// else has a default.
type Config struct {
	// Command is the program and its arguments; no shell reads them. A program
	// without a slash is looked for in PATH by New. Arguments, but not the
	// program, are templates: {tenant}, {instance}, {intent}, {attempt}, {key} and
	// {identity} stand for parts of the hand-off, and a brace of its own is
	// written twice. Values come as they are: put "--" or an option's name before
	// one that may begin with a dash.
	Command []string
	// Env is the whole environment, as NAME=value; nothing is inherited. Added to
	// it are IDEMPOTENCY_KEY, HANDOFF_IDENTITY and HANDOFF_ATTEMPT.
	Env []string
	// Dir is where it runs; empty: where this process does.
	Dir string
	// Prepare changes a command before it is started; it must not start it, nor
	// set its standard streams or Cancel. It is called by many goroutines at once. Its error
	// is proof that nothing ran, and with [supervisor.Refused] that nothing shall.
	// Nil for none.
	Prepare func(handoff *supervisor.Handoff, command *exec.Cmd) error

	// Exits says what exit statuses mean. Status 0 is Succeeded unless it is
	// listed, all others that are not listed are Ambiguous.
	Exits map[int]Meaning
	// MaxOutput is how many bytes of the standard output are kept. Default
	// 64 KiB, at most [supervisor.MaxOutputBytes].
	MaxOutput int
	// StderrInReason lets the last 1 KiB of the standard error become part of the
	// reason that the instance is told of a failure. Else it is the status alone.
	StderrInReason bool
	// OutputWait is how long to wait, after the end of the process, for others to
	// whom it has left its standard output. What they write later is lost.
	// Default 1 s.
	OutputWait time.Duration
}

// Meaning is what an exit status means.
type Meaning string

// The meanings.
const (
	// Succeeded: the effect happened.
	Succeeded Meaning = "succeeded"
	// Failed: it did not, and will not.
	Failed Meaning = "failed"
	// Retryable: it did not, and another attempt may succeed.
	Retryable Meaning = "retryable"
	// Refused: as failed; the instance is told no reason.
	Refused Meaning = "refused"
	// Ambiguous: nobody knows.
	Ambiguous Meaning = "ambiguous"
)

func (m Meaning) valid() bool {
	switch m {
	case Succeeded, Failed, Retryable, Refused, Ambiguous:
		return true
	}
	return false
}

const (
	defaultMaxOutput  = 64 << 10
	defaultOutputWait = time.Second
	maxStderr         = 1024
)

// New returns a provider. The error names everything that is wrong with the
// config, a program that is not found included.
func New(config Config) (supervisor.Provider, error) {
	p := &provider{config: config}
	c := &p.config
	c.Env, c.Exits = slices.Clone(c.Env), maps.Clone(c.Exits)
	if c.MaxOutput == 0 {
		c.MaxOutput = defaultMaxOutput
	}
	if c.OutputWait == 0 {
		c.OutputWait = defaultOutputWait
	}
	if err := errors.Join(append(c.faults(), p.parse())...); err != nil {
		return nil, fmt.Errorf("commandprovider: config: %w", err)
	}
	return p, nil
}

func (c *Config) faults() []error {
	var errs []error
	for n, entry := range c.Env {
		name, _, found := strings.Cut(entry, "=")
		switch {
		case !found || name == "":
			errs = append(errs, fmt.Errorf("Env[%d] is no NAME=value", n))
		case strings.ContainsRune(entry, 0):
			errs = append(errs, fmt.Errorf("Env[%d] holds a NUL character", n))
		case name == envKey || name == envIdentity || name == envAttempt:
			errs = append(errs, fmt.Errorf("Env[%d] is %s, which the provider sets", n, name))
		}
	}
	for _, status := range slices.Sorted(maps.Keys(c.Exits)) {
		if status < 0 {
			errs = append(errs, fmt.Errorf("Exits has %d, must not be negative", status))
		}
		if meaning := c.Exits[status]; !meaning.valid() {
			errs = append(errs, fmt.Errorf("Exits[%d] is %q, which is no meaning", status, meaning))
		}
	}
	if c.MaxOutput < 0 || c.MaxOutput > supervisor.MaxOutputBytes {
		errs = append(errs, fmt.Errorf("MaxOutput is %d, must be between 1 and %d", c.MaxOutput, supervisor.MaxOutputBytes))
	}
	if c.OutputWait < 0 {
		errs = append(errs, fmt.Errorf("OutputWait is %v, must not be negative", c.OutputWait))
	}
	return errs
}

// parse finds the program and reads the templates.
func (p *provider) parse() error {
	if len(p.config.Command) == 0 || p.config.Command[0] == "" {
		return errors.New("Command names no program")
	}
	var errs []error
	path, err := exec.LookPath(p.config.Command[0])
	if err == nil {
		path, err = filepath.Abs(path) // whatever Dir is
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("Command[0]: %w", err))
	}
	p.path = path
	for n, text := range p.config.Command[1:] {
		argument, err := providerkit.ParseTemplate(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("Command[%d]: %w", n+1, err))
		}
		if strings.ContainsRune(text, 0) {
			errs = append(errs, fmt.Errorf("Command[%d] holds a NUL character", n+1))
		}
		p.arguments = append(p.arguments, argument)
	}
	return errors.Join(errs...)
}
