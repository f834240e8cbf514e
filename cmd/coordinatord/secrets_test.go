package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/internal/sock"
)

// Words that are in payloads and nowhere else.
const (
	inDocument = "wombat-in-a-document"
	inArgument = "quokka-in-an-argument"
	inEnviron  = "numbat-in-the-environment"
	inOutput   = "bilby-in-the-output"
	inProgram  = "dunnart-is-no-program"
	inGarbage  = "potoroo-in-garbage"
)

// loud starts a daemon that logs all that it can.
func loud(t *testing.T, format, program, dir string) *process {
	t.Helper()
	return launch(t, nil, program, "serve", "--state", dir, "--log-level", "debug", "--log-format", format)
}

// TestLogsHoldNoSecret drives the three daemons with words that must not be found again, in
// either format of their logs: payloads, arguments, environment, output, and the garbage of
// strangers. Nor may the keys of their state directories be there in any form.
func TestLogsHoldNoSecret(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			r := withOwner(t)
			wdir := filepath.Join(r.root, "w")
			for _, d := range []struct{ dir, file string }{{r.dir, configFile}, {r.odir, "owner.toml"}, {wdir, "witness.toml"}} {
				monitored(t, d.dir, d.file)
			}
			require.Equal(t, 0, r.witness.stop())
			r.witness = loud(t, format, witnessd, wdir)
			r.witness.ready()
			require.Equal(t, 0, r.process.stop())
			r.process = loud(t, format, ownerd, r.odir)
			r.process.ready()
			p := loud(t, format, coordinatord, r.dir)
			p.ready()
			c := r.dial()
			defer c.Close()

			op, id := fresh[frames.OperationID](t), fresh[frames.ObjectiveID](t)
			cmd, err := client.NewCommand(op, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte(`{"title":"` + inDocument + `"}`)})
			require.NoError(t, err)
			_, err = c.Command(t.Context(), cmd)
			require.NoError(t, err)
			s := r.startWith(c, map[string]any{
				"argv": []string{"/bin/sh", "-c", "printf '%s' bilby-in-; echo the-output", inArgument}, "env": map[string]string{"WORD": inEnviron},
			})
			r.send(c, s.cmd)
			require.Equal(t, frames.RunCompleted, r.ended(c, s).State)
			bad := r.start(c, "/nowhere/"+inProgram, inArgument)
			r.send(c, bad.cmd)
			require.NotEqual(t, frames.OperationSucceeded, r.result(c, bad.op).State)
			for _, socket := range []string{r.report.Socket, r.socket, filepath.Join(wdir, "witness.sock")} {
				garbage(t, socket)
			}
			var probes strings.Builder
			for _, d := range []*process{p, r.process, r.witness} {
				for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
					_, text := probe(d.monitor(), path)
					probes.WriteString(text)
				}
			}
			require.NoError(t, c.Close())
			require.Equal(t, 0, p.stop())
			require.Equal(t, 0, r.process.stop())
			require.Equal(t, 0, r.witness.stop())

			said := p.output() + r.process.output() + r.witness.output() + probes.String()
			require.Contains(t, said, "connection ended")
			require.Contains(t, said, "process was not started")
			if format == "json" {
				for line := range strings.Lines(p.output()) {
					if strings.HasPrefix(line, "{") {
						require.True(t, json.Valid([]byte(line)), line)
					}
				}
				require.Contains(t, said, `"msg":"connection ended"`)
			}
			for _, word := range []string{inDocument, inArgument, inEnviron, inOutput, inProgram, inGarbage} {
				require.NotContains(t, said, word)
				require.NotContains(t, said, hex.EncodeToString([]byte(word)))
				require.NotContains(t, said, base64.RawStdEncoding.EncodeToString([]byte(word))[:16])
			}
			for file, key := range secretsUnder(t, r.root) {
				require.NotContains(t, said, string(key), file)
				require.NotContains(t, strings.ToLower(said), hex.EncodeToString(key), file)
				require.NotContains(t, said, base64.RawStdEncoding.EncodeToString(key), file)
				require.NotContains(t, said, base64.RawURLEncoding.EncodeToString(key), file)
				require.NotContains(t, said, strings.Trim(fmt.Sprint(key), "[]"), file)
			}
		})
	}
}

// garbage is what a stranger may send before it is cut: a frame that does not decode, and one
// of an unknown type.
func garbage(t *testing.T, socket string) {
	t.Helper()
	for _, frame := range [][]byte{
		append([]byte{0, 0, 0, byte(1 + len(inGarbage)), byte(frames.TypeCoordHello)}, inGarbage...),
		append([]byte{0, 0, 0, byte(1 + len(inGarbage)), 0x77}, inGarbage...),
	} {
		nc, err := sock.Dial(context.Background(), socket)
		require.NoError(t, err)
		_, err = nc.Write(frame)
		require.NoError(t, err)
		drainConn(nc)
	}
}

// drainConn reads until the other side has closed.
func drainConn(nc net.Conn) {
	defer nc.Close()
	buf := make([]byte, 512)
	for {
		if _, err := nc.Read(buf); err != nil {
			return
		}
	}
}

// secretsUnder gives the seeds of all private keys.
func secretsUnder(t *testing.T, root string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".ed25519") {
			return err
		}
		raw, err := os.ReadFile(path)
		out[path] = raw
		return err
	}))
	require.GreaterOrEqual(t, len(out), 6, "of three daemons, a link and two clients")
	return out
}
