package pgqueue

import (
	"context"
	"encoding/binary"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// proxy stands between a queue and its server and cuts connections.
type proxy struct {
	listener net.Listener
	target   string
	// left is how many more chunks of data pass, in either direction, before the
	// connection that brings the next one is cut; negative: no end.
	left atomic.Int64
	// toServer cuts before a chunk reaches the server, else before its answer
	// reaches the client.
	toServer atomic.Bool
	cuts     atomic.Int64
	// messages counts each message of the server as a chunk of its own, so that a
	// client gets a part of an answer.
	messages atomic.Bool
	// refusing closes new connections at once; staysDown refuses them from the cut on.
	refusing, staysDown atomic.Bool
	group               sync.WaitGroup
	mu                  sync.Mutex
	conns               map[net.Conn]struct{}
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener, target: target, conns: make(map[net.Conn]struct{})}
	p.left.Store(-1)
	p.group.Go(p.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		p.cutAll()
		p.group.Wait()
	})
	return p
}

// cutAll cuts every connection.
func (p *proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *proxy) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", p.listener.Addr().String())
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.refusing.Load() {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.group.Go(func() { p.pass(client, server, true) })
		p.group.Go(func() { p.pass(server, client, false) })
	}
}

// pass copies one direction until either end or a cut.
func (p *proxy) pass(from, to net.Conn, toServer bool) {
	defer func() {
		_ = from.Close()
		_ = to.Close()
		p.mu.Lock()
		delete(p.conns, from)
		delete(p.conns, to)
		p.mu.Unlock()
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		for rest := buffer[:n]; len(rest) > 0; {
			size := len(rest)
			if !toServer && p.messages.Load() {
				size = messageSize(rest)
			}
			if p.toServer.Load() == toServer && p.left.Load() >= 0 && p.left.Add(-1) < 0 {
				p.refusing.Store(p.staysDown.Load())
				p.cuts.Add(1)
				p.left.Store(-1)
				return
			}
			if _, err := to.Write(rest[:size]); err != nil {
				return
			}
			rest = rest[size:]
		}
		if err != nil {
			return
		}
	}
}

// messageSize is the size of the message of a server that some bytes begin with; all
// of them where they hold no whole one.
func messageSize(data []byte) int {
	const header = 5
	if len(data) < header {
		return len(data)
	}
	return min(len(data), 1+int(binary.BigEndian.Uint32(data[1:header])))
}

// openThrough opens a queue on a schema whose connections go through a proxy.
func openThrough(t *testing.T, schema string) (*Queue, *proxy) {
	t.Helper()
	config, err := pgx.ParseConfig(testDSN(t))
	require.NoError(t, err)
	p := newProxy(t, net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	q := open(t, testDSN(t), schema, Options{DisableListen: true}, func(config *pgxpool.Config) {
		config.ConnConfig.DialFunc = p.dial
	})
	return q, p
}

// TestConnectionsAreCutAtEveryStep cuts the connection of a commit at each of
// its exchanges with the server, in both directions, new connections included.
// Whatever was cut, the command is applied once and reported as applied.
func TestConnectionsAreCutAtEveryStep(t *testing.T) {
	direct := newQueue(t, Options{})
	ctx := context.Background()
	for _, toServer := range []bool{true, false} {
		for _, kept := range []bool{false, true} {
			for step := range int64(12) {
				name := map[bool]string{true: "to the server", false: "to the client"}[toServer] +
					map[bool]string{true: ", kept", false: ""}[kept] + ", step " + strconv.FormatInt(step, 10)
				t.Run(name, func(t *testing.T) {
					q, p := openThrough(t, direct.options.Schema)
					id := strings.ReplaceAll(t.Name(), "/", " ")
					i := instance(t, id)
					i.SpecID = id
					_, err := direct.Start(ctx, i, zero)
					require.NoError(t, err)
					item := claimOf(t, q, id)
					p.toServer.Store(toServer)
					p.left.Store(step)
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					c := command(t, &item, again)
					var next *supervisor.WorkItem
					if kept {
						next, err = q.CommitAndKeep(ctx, &item, &c, testLease)
					} else {
						err = q.CommitCommand(ctx, &item, &c)
					}
					p.left.Store(-1)
					require.NoError(t, err)
					require.Len(t, history(t, direct, id), 1)
					require.EqualValues(t, 1, get(t, direct, id).StateVersion)
					require.Equal(t, kept, next != nil)
					last := item
					if kept {
						last = *next
					} else {
						last = claimOf(t, q, id)
					}
					require.NoError(t, commit(t, q, &last, complete))
				})
			}
		}
	}
}

// TestNothingIsLostOrDoneTwiceWhileConnectionsAreCut runs a supervisor whose
// connections are cut again and again.
func TestNothingIsLostOrDoneTwiceWhileConnectionsAreCut(t *testing.T) {
	direct := newQueue(t, Options{})
	const instances = 100
	fill(t, direct, instances, 3, "clock_timestamp()")
	q, p := openThrough(t, direct.options.Schema)
	stop := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for n := int64(0); ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			p.toServer.Store(n%2 == 0)
			p.left.Store(n % 7)
		}
	})
	runUntilDone(t, direct, q, "spec", instances)
	close(stop)
	cutter.Wait()
	require.Positive(t, p.cuts.Load())
	requireWholeHistories(t, direct, instances)
}

// runUntilDone runs a supervisor on a queue until all instances are completed,
// as another, undisturbed queue sees it.
func runUntilDone(t *testing.T, see, q supervisor.WorkQueue, spec string, instances int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	direct := see.(*Queue)
	registry := supervisor.NewDriverRegistry[int]()
	require.NoError(t, registry.Register(supervisor.NewDriver(spec, 1, stepDriver)))
	settings := supervisor.Settings{
		Concurrency: 16, LeaseDuration: 2 * time.Second, RequeueDelay: time.Second, PollInterval: 100 * time.Millisecond,
		CommitTimeout: 20 * time.Second,
	}
	s, err := supervisor.New(q, registry, settings, func(context.Context) (int, error) { return 0, nil })
	require.NoError(t, err)
	var group sync.WaitGroup
	group.Go(func() { _ = s.Run(ctx) })
	for ctx.Err() == nil {
		if number(t, direct, "SELECT count(*) FROM {{schema}}.run WHERE status = 'completed'") == int64(instances) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	require.NoError(t, ctx.Err(), "not done in time")
	cancel()
	group.Wait()
}

// stepDriver completes an instance with its tenth transition.
func stepDriver(_ context.Context, _ int, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	step := rawJSON(`{"step":` + strconv.FormatInt(item.StateVersion+1, 10) + `}`)
	var disposition supervisor.Disposition = supervisor.Continue{}
	if item.StateVersion+1 >= transitions {
		disposition = supervisor.Complete{}
	}
	return supervisor.NewCommand(item, "stepped", step, step, disposition)
}

// requireWholeHistories checks that every instance went through each of its
// versions once: the events are without gaps and make the state.
func requireWholeHistories(t *testing.T, q *Queue, instances int) {
	t.Helper()
	require.EqualValues(t, instances, number(t, q, "SELECT count(*) FROM {{schema}}.run WHERE status = 'completed'"))
	require.Zero(t, number(t, q, `SELECT count(*) FROM {{schema}}.run r WHERE r.state_version <>
		(SELECT count(*) FROM {{schema}}.event e WHERE e.instance_no = r.instance_no)`))
	require.Zero(t, number(t, q, `SELECT count(*) FROM {{schema}}.run r JOIN {{schema}}.event e
		ON e.instance_no = r.instance_no AND e.state_version = r.state_version WHERE r.state IS DISTINCT FROM e.payload`))
}
