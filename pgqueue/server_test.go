package pgqueue

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// dsnVariable names the database that the tests use.
const dsnVariable = "SUPERVISOR_TEST_POSTGRES"

// defaultDSN is tried where the variable is not set.
const defaultDSN = "postgres://postgres@127.0.0.1:5432/test?sslmode=disable"

// shared is the database of all tests but those that crash their server.
var shared struct {
	once   sync.Once
	dsn    string
	server *server
	err    error
}

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		os.Exit(runWorker())
	}
	code := m.Run()
	if shared.server != nil {
		shared.server.stop()
	}
	stopBenchServer()
	os.Exit(code)
}

// testDSN returns the database for tests, and skips where there is none, or
// fails in CI.
func testDSN(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() {
		if shared.dsn = os.Getenv(dsnVariable); shared.dsn != "" {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, defaultDSN)
		if err == nil {
			_ = conn.Close(ctx)
			shared.dsn = defaultDSN
			return
		}
		if shared.server, shared.err = newServer(); shared.err == nil {
			shared.dsn = shared.server.dsn()
		}
	})
	if shared.err != nil {
		missing(t, shared.err)
	}
	return shared.dsn
}

// missing ends a test for want of a server.
func missing(t testing.TB, err error) {
	t.Helper()
	message := fmt.Sprintf("no PostgreSQL: %v; set %s to the URL of a database, or install the server's programs (initdb, postgres)", err, dsnVariable)
	if os.Getenv("CI") == "true" {
		t.Fatal(message)
	}
	t.Skip(message)
}

var schemaCount struct {
	sync.Mutex
	n int
}

// newSchema returns the name of a schema for one test, which drops it.
func newSchema(t testing.TB, dsn string) string {
	t.Helper()
	schemaCount.Lock()
	schemaCount.n++
	schema := fmt.Sprintf("supervisor test %d.%d", os.Getpid(), schemaCount.n)
	schemaCount.Unlock()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			t.Logf("schema %q stays: %v", schema, err)
			return
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		for isConflict(err) && ctx.Err() == nil {
			// Sessions of killed processes may still be at work.
			_, err = conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		}
		require.NoError(t, err)
	})
	return schema
}

// newPool returns a pool that the test closes.
func newPool(t testing.TB, dsn string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	for _, change := range change {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// open returns a queue on a schema, migrated.
func open(t testing.TB, dsn, schema string, options Options, change ...func(*pgxpool.Config)) *Queue {
	t.Helper()
	options.Schema = schema
	q, err := New(newPool(t, dsn, change...), options)
	require.NoError(t, err)
	t.Cleanup(q.Close)
	require.NoError(t, q.Migrate(context.Background()))
	return q
}

// newQueue returns a queue on a schema of its own.
func newQueue(t testing.TB, options Options) *Queue {
	t.Helper()
	dsn := testDSN(t)
	return open(t, dsn, newSchema(t, dsn), options)
}

// server is a PostgreSQL server of the tests' own.
type server struct {
	bin, folder string
	port        int
	account     *syscall.Credential
	process     *exec.Cmd
	output      bytes.Buffer
}

// newServer makes a database cluster in a temporary folder and starts a server
// on it, or says what is missing.
func newServer(settings ...string) (*server, error) {
	s := &server{}
	if path, err := exec.LookPath("initdb"); err == nil {
		s.bin = filepath.Dir(path)
	} else if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		s.bin = filepath.Dir(found[len(found)-1])
	} else {
		return nil, fmt.Errorf("initdb was not found")
	}
	var err error
	if s.folder, err = os.MkdirTemp("", "supervisor-postgres-"); err != nil {
		return nil, err
	}
	if os.Getuid() == 0 {
		// The server refuses to run as root.
		account, err := user.Lookup("postgres")
		if err != nil {
			return nil, err
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		s.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(s.folder, uid, gid); err != nil {
			return nil, err
		}
	}
	data := filepath.Join(s.folder, "data")
	if output, err := s.command("initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "-N").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, output)
	}
	configuration := "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\n"
	for _, setting := range settings {
		configuration += setting + "\n"
	}
	file, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if _, err = file.WriteString(configuration); err == nil {
		err = file.Close()
	}
	if err != nil {
		return nil, err
	}
	if s.port, err = freePort(); err != nil {
		return nil, err
	}
	return s, s.start()
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

func (s *server) command(program string, arguments ...string) *exec.Cmd {
	command := exec.Command(filepath.Join(s.bin, program), arguments...)
	command.Dir = s.folder
	command.Env = append(os.Environ(), "LC_ALL=C")
	command.SysProcAttr = &syscall.SysProcAttr{Credential: s.account, Pdeathsig: syscall.SIGQUIT}
	return command
}

// start starts the server and waits until it serves.
func (s *server) start() error {
	s.process = s.command("postgres", "-D", filepath.Join(s.folder, "data"), "-p", strconv.Itoa(s.port))
	s.process.Stdout, s.process.Stderr = &s.output, &s.output
	if err := s.process.Start(); err != nil {
		return err
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := pgx.Connect(ctx, s.dsn())
		if err == nil {
			_ = conn.Close(ctx)
			cancel()
			return nil
		}
		cancel()
		if time.Now().After(deadline) {
			_ = s.process.Process.Kill()
			_ = s.process.Wait()
			return fmt.Errorf("the server does not serve: %w: %s", err, s.output.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// crash stops the server in immediate mode: without a checkpoint, as a crash
// would.
func (s *server) crash() error {
	if err := s.process.Process.Signal(syscall.SIGQUIT); err != nil {
		return err
	}
	_ = s.process.Wait()
	return nil
}

func (s *server) stop() {
	_ = s.process.Process.Signal(syscall.SIGQUIT)
	_ = s.process.Wait()
	_ = os.RemoveAll(s.folder)
}

func (s *server) dsn() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// ownServer returns a server that the test may crash.
func ownServer(t testing.TB, settings ...string) *server {
	t.Helper()
	s, err := newServer(settings...)
	if err != nil {
		missing(t, err)
	}
	t.Cleanup(s.stop)
	return s
}
