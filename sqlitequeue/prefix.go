package sqlitequeue

import (
	"fmt"
	"strings"
)

// defaultPrefix begins the names of tables and indexes in every statement text.
const defaultPrefix = "supervisor_"

// prefixer puts the queue's own prefix in the place of the default one.
type prefixer string

func (p prefixer) apply(text string) string {
	if p == defaultPrefix {
		return text
	}
	return strings.ReplaceAll(text, defaultPrefix, string(p))
}

// validate takes the prefix of plain SQL names only, for it becomes part of
// statement texts.
func (p prefixer) validate() error {
	for n, c := range []byte(p) {
		if c == '_' || (c >= 'a' && c <= 'z') || (n > 0 && c >= '0' && c <= '9') {
			continue
		}
		return fmt.Errorf("TablePrefix is %q, must be lower-case letters, digits and underscores and not begin with a digit", string(p))
	}
	if len(p) > 32 {
		return fmt.Errorf("TablePrefix has %d bytes, more than 32", len(p))
	}
	return nil
}
