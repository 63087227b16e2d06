package supervisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Code in the documentation is copied from examples, which compile and whose
// output is checked. These tests keep the copies true.

func TestReadmeShowsTheExamples(t *testing.T) {
	code := exampleCode(t)
	text := readFile(t, "README.md")
	blocks := strings.Split(text, "```go\n")[1:]
	require.GreaterOrEqual(t, len(blocks), 4)
	for _, block := range blocks {
		block, _, closed := strings.Cut(block, "```\n")
		require.True(t, closed, block)
		require.Contains(t, code, trimIndent(block), "no example has these lines of README.md")
	}
}

func TestManualShowsTheExamples(t *testing.T) {
	code := exampleCode(t)
	blocks := 0
	block := ""
	for line := range strings.Lines(readFile(t, "doc.go")) {
		if part, ok := strings.CutPrefix(line, "//\t"); ok {
			block += part
			continue
		}
		if block != "" {
			blocks++
			require.Contains(t, code, trimIndent(block), "no example has these lines of doc.go")
		}
		block = ""
	}
	require.Equal(t, 2, blocks)
}

// The README names files of this repository; they are there.
func TestReadmeNamesFilesThatExist(t *testing.T) {
	for _, part := range strings.Split(readFile(t, "README.md"), "](")[1:] {
		target, _, _ := strings.Cut(part, ")")
		if target != "" && !strings.Contains(target, "://") { // empty: a call of a generic function
			_, err := os.Stat(filepath.FromSlash(target))
			require.NoError(t, err)
		}
	}
}

// What the README shows of the orders example is what its test expects of it.
func TestReadmeShowsTheOrders(t *testing.T) {
	shown := ""
	for line := range strings.Lines(readFile(t, "README.md")) {
		shown += strings.TrimPrefix(line, "    ")
	}
	_, want, _ := strings.Cut(readFile(t, filepath.Join("examples", "orders", "main_test.go")), "require.Equal(t, `")
	want, _, _ = strings.Cut(want, "12 orders in ") // how long it takes depends on the queue
	require.Contains(t, shown, want)
}

// exampleCode is the text of all examples, without indentation.
func exampleCode(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	code := ""
	for _, path := range paths {
		if strings.HasPrefix(path, "example") || path == "conformance_test.go" {
			code += trimIndent(readFile(t, path))
		}
	}
	return code
}

func trimIndent(text string) string {
	trimmed := ""
	for line := range strings.Lines(text) {
		trimmed += strings.TrimLeft(line, "\t")
	}
	return trimmed
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}
