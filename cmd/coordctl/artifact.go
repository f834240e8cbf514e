package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/frames"
	"coordinator/internal/shell"
)

// artifactFlags are the flags of `artifact register`.
type artifactFlags struct {
	id, run, op string
	manifest    string
	revision    uint64
	schema      uint16
}

func (a *app) artifactCommand() *cobra.Command {
	var f artifactFlags
	c := &cobra.Command{
		Use:   "register --manifest FILE|- (--run RUN | --id ARTIFACT)",
		Short: "Register a manifest: the first of a new artifact of a run, or the next of one that exists",
		Long: `Register an artifact manifest. With --run it is revision 1 of a new artifact of that run's
session. With --id alone it is the next revision of that artifact. The coordinator keeps the
manifest's bytes; what they mean is said by --schema.`,
		Example: `  coordctl artifact register --run 2d88da09 --manifest manifest.json
  sha256sum dist/* | coordctl artifact register --run 2d88da09 --manifest - --schema 2
  coordctl artifact register --id 7be410 --manifest manifest.json`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.registerArtifact(cmd.Context(), f)
		},
	}
	c.Flags().StringVar(&f.id, "id", "", "the artifact's `ID`: of one that exists, or with --run of the new one (default: a random one)")
	c.Flags().StringVar(&f.run, "run", "", "the `RUN` that a new artifact belongs to")
	c.Flags().Uint64Var(&f.revision, "revision", 0, "the revision `N` (default: 1, or the latest and one)")
	c.Flags().Uint16Var(&f.schema, "schema", 1, "the manifest's schema `N`")
	c.Flags().StringVar(&f.manifest, "manifest", "", "the manifest: a `FILE`, or - for standard input (required)")
	c.Flags().StringVar(&f.op, "op", "", opFlagHelp+"; give --id and --revision too")
	return group("artifact", "Keep what a run has made", `Keep what a run has made: manifests, which say what there is and where.`, c)
}

// load reads the manifest's bytes.
func (f *artifactFlags) load(stdin io.Reader) ([]byte, error) {
	r := stdin
	if f.manifest != "-" {
		file, err := os.Open(f.manifest)
		if err != nil {
			return nil, usage("--manifest: %v", err)
		}
		defer file.Close()
		r = file
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("--manifest: %w", err)
	}
	if len(raw) > maxDocument {
		return nil, usage("--manifest is larger than %d bytes", maxDocument)
	}
	return raw, nil
}

func (f *artifactFlags) check() (runPrefix, idPrefix string, err error) {
	switch {
	case f.manifest == "":
		return "", "", usage("--manifest is missing: a file, or - for standard input")
	case f.run == "" && f.id == "":
		return "", "", usage("give --run for a new artifact, or --id for the next revision of one")
	case f.op != "" && (f.id == "" || f.revision == 0):
		return "", "", usage("--op needs the --id and --revision that were used before: others would be another command")
	}
	if f.run != "" {
		if runPrefix, err = checkPrefix(f.run); err != nil {
			return "", "", err
		}
	}
	if f.id != "" {
		idPrefix, err = checkPrefix(f.id)
	}
	return runPrefix, idPrefix, err
}

func (a *app) registerArtifact(ctx context.Context, f artifactFlags) error {
	run, id, err := f.check()
	if err != nil {
		return err
	}
	manifest, err := f.load(a.stdin)
	if err != nil {
		return err
	}
	op, retried, err := operationID(f.op)
	if err != nil {
		return err
	}
	if run != "" && id == "" {
		fresh, err := frames.NewID[frames.ArtifactID](rand.Reader)
		if err != nil {
			return err
		}
		id = fresh.String()
	}
	text := func(id string, revision uint64) again {
		line := fmt.Sprintf("artifact register --op %v --id %s", op, id)
		if run != "" {
			line += " --run " + run
		}
		if revision != 0 {
			line += fmt.Sprintf(" --revision %d", revision)
		}
		return again{args: line + fmt.Sprintf(" --schema %d --manifest %s", f.schema, shell.Quote(f.manifest)), input: f.manifest == "-"}
	}
	return a.mutate(ctx, quietCaps, op, text(id, f.revision), retried, func(ctx context.Context, s *session) error {
		body, pre, err := s.manifestFor(ctx, f, run, id)
		if err != nil {
			return err
		}
		body.Manifest = manifest
		cmd, err := client.NewCommand(op, frames.CommandRegisterArtifactManifest, body, pre...)
		if err != nil {
			return err
		}
		return s.send(ctx, cmd, retried, text(body.ArtifactID.String(), uint64(body.Revision)),
			object{{"artifact_id", body.ArtifactID.String()}, {"revision", body.Revision}})
	})
}

// manifestFor names artifact and revision, and for the first revision its session. The
// precondition is the session's revision as it is now, so that a retry after a change of the
// session is another command: its --op is looked up first and then refused.
func (s *session) manifestFor(ctx context.Context, f artifactFlags, run, id string) (*frames.RegisterArtifactManifest, []frames.Precondition, error) {
	body := &frames.RegisterArtifactManifest{Schema: f.schema, Revision: frames.ObjectRevision(f.revision)}
	snap, err := s.snapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer snap.Close()
	if run == "" {
		r, err := findIn(snap, frames.KindArtifact, id)
		if err != nil {
			return nil, nil, err
		}
		p, err := r.DecodePayload()
		if err != nil {
			return nil, nil, fmt.Errorf("%v: %w", r.Ref(), err)
		}
		body.ArtifactID = frames.ArtifactID(r.ID)
		if body.Revision == 0 {
			body.Revision = p.(*frames.Artifact).LatestRevision + 1
		}
		return body, nil, nil
	}
	if body.ArtifactID, err = frames.ParseID[frames.ArtifactID](id); err != nil {
		return nil, nil, usage("--id: %v; a new artifact needs a whole one", err)
	}
	if body.Revision == 0 {
		body.Revision = 1
	}
	fam, err := familyIn(snap, run)
	if err != nil {
		return nil, nil, err
	}
	var pre []frames.Precondition
	for ref, revision := range fam.Members {
		if ref.Kind == frames.KindWorkSession {
			pre = append(pre, frames.Precondition{Object: ref, Revision: uint64(revision)})
		}
	}
	if len(pre) != 1 {
		return nil, nil, &client.RefusedError{Code: frames.CodeNotFound, Message: fmt.Sprintf("run %v has %s, and an artifact belongs to one", fam.ID, runs.Plural(len(pre), "work session"))}
	}
	return body, pre, nil
}
