package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed all:dist
var dist embed.FS

// assetTypes are the kinds of files that a page has. The table of the system's own, which
// differs from machine to machine, is not asked.
var assetTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".png":  "image/png",
	".ico":  "image/x-icon",
	".txt":  "text/plain; charset=utf-8",
}

// An asset is one file of the page.
type asset struct {
	kind, tag string
	body      []byte
}

// loadAssets reads the page, by the paths that it is asked for under.
func loadAssets(files fs.FS) (map[string]asset, error) {
	out := map[string]asset{}
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		kind, ok := assetTypes[path.Ext(name)]
		if !ok {
			return fmt.Errorf("console: %s is of no kind that a page has", name)
		}
		body, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		out["/"+name] = asset{kind, `"` + hex.EncodeToString(sum[:16]) + `"`, body}
		return nil
	})
	if err == nil {
		index, ok := out["/index.html"]
		if !ok {
			return nil, fmt.Errorf("console: the page has no index.html")
		}
		out["/"] = index
	}
	return out, err
}

// serve answers with the file. A browser keeps it and asks each time whether it is still so.
func (a asset) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", a.tag)
	if strings.Contains(r.Header.Get("If-None-Match"), a.tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Write(a.body) //nolint:errcheck // the asker has gone
}
