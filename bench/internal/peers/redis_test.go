package peers

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/bench/internal/measure"
)

// answer gives a connection whose peer answers one request with reply.
func answer(t *testing.T, want, reply string) *respConn {
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer theirs.Close()
		got := make([]byte, len(want))
		if n, err := theirs.Read(got); err != nil || string(got[:n]) != want {
			t.Errorf("the request is %q, %v", got[:n], err)
		}
		if _, err := theirs.Write([]byte(reply)); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { ours.Close(); <-done })
	return newRESP(ours)
}

func TestRESP(t *testing.T) {
	for _, tt := range []struct {
		name, reply string
		want        any
		fails       string
	}{
		{"text", "+PONG\r\n", "PONG", ""},
		{"number", ":42\r\n", int64(42), ""},
		{"bytes", "$3\r\na\r\n\r\n", []byte("a\r\n"), ""},
		{"nothing", "$-1\r\n", nil, ""},
		{"no list", "*-1\r\n", nil, ""},
		{"list", "*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", []any{int64(1), []any{[]byte("x")}}, ""},
		{"error", "-ERR no\r\n", nil, "ERR no"},
		{"short", "+\n", nil, "short reply"},
		{"unknown", "!1\r\n", nil, "no known kind"},
		{"cut", "$10\r\nabc", nil, "EOF"},
		{"no length", "$x\r\n", nil, "invalid syntax"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := answer(t, "*2\r\n$4\r\nPING\r\n$0\r\n\r\n", tt.reply).do("PING", "")
			if tt.fails != "" {
				require.ErrorContains(t, err, tt.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestEntryOrder(t *testing.T) {
	require.Less(t, entryOrder("5-9"), entryOrder("5-10"))
	require.Less(t, entryOrder("5-10"), entryOrder("6-0"))
	for _, bad := range []string{"", "5", "5-", "x-1", "1-x"} {
		require.Zero(t, entryOrder(bad), bad)
	}
}

func TestTakeEntries(t *testing.T) {
	entry := func(id string) any {
		return []any{[]byte(id), []any{[]byte("d"), make([]byte, measure.ValueSize)}}
	}
	sub := measure.NewSubscribers(1)[0]
	require.Equal(t, "1-2", takeEntries([]any{entry("1-1"), []any{[]byte("torn")}, entry("1-2")}, 0, sub, "0-0"))
	require.Equal(t, "0-0", takeEntries(nil, 0, sub, "0-0"))
}
