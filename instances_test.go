package supervisor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScopeValidate(t *testing.T) {
	longest := strings.Repeat("x", MaxIDBytes)
	tests := []struct {
		name  string
		scope Scope
		want  string
	}{
		{"tenant", Scope{TenantID: "t"}, ""},
		{"instance", Scope{TenantID: "t", InstanceID: "i"}, ""},
		{"resource", Scope{TenantID: "t", ResourceID: "r"}, ""},
		{"longest ids", Scope{TenantID: longest, InstanceID: longest}, ""},
		{"nothing", Scope{}, "TenantID is blank"},
		{"blank tenant", Scope{TenantID: "\u3000", InstanceID: "i"}, "TenantID is blank"},
		{"blank instance", Scope{TenantID: "t", InstanceID: " "}, "InstanceID is blank"},
		{"blank resource", Scope{TenantID: "t", ResourceID: "\t"}, "ResourceID is blank"},
		{"instance and resource", Scope{TenantID: "t", InstanceID: "i", ResourceID: "r"}, `InstanceID is "i" and ResourceID is "r", only one may be set`},
		{"long tenant", Scope{TenantID: longest + "x"}, "TenantID has 513 bytes"},
		{"long instance", Scope{TenantID: "t", InstanceID: longest + "x"}, "InstanceID has 513 bytes"},
		{"long resource", Scope{TenantID: "t", ResourceID: longest + "x"}, "ResourceID has 513 bytes"},
		{"NUL", Scope{TenantID: "t", InstanceID: "a\x00"}, "InstanceID holds a NUL character"},
		{"not UTF-8", Scope{TenantID: "\xff"}, "TenantID is not valid UTF-8"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.scope.Validate()
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
				require.ErrorContains(t, err, "supervisor: scope: ")
			}
		})
	}
}
