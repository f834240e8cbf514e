package limits

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"time"

	"coordinator/bench/internal/measure"
)

// crypto measures hashing and signatures on one core.
func crypto(ctx context.Context, e *measure.Env) error {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	msg := buf[:measure.ValueSize]
	sig := ed25519.Sign(key, msg)
	if !ed25519.Verify(public, msg, sig) {
		return errors.New("a signature does not verify")
	}
	rate := func(f func()) float64 {
		began, n := time.Now(), 0
		for end := began.Add(e.Window(200)); time.Now().Before(end); n++ {
			f()
		}
		return float64(n) / time.Since(began).Seconds()
	}
	h := sha256.New()
	for range 5 {
		e.Rec.Add("sha256", "MB/s", rate(func() { h.Write(buf) })*float64(len(buf))/1e6)
		e.Rec.Add("sha256.256B", "hashes/s", rate(func() { sha256.Sum256(msg) }))
		e.Rec.Add("ed25519.sign", "ops/s", rate(func() { ed25519.Sign(key, msg) }))
		e.Rec.Add("ed25519.verify", "ops/s", rate(func() { ed25519.Verify(public, msg, sig) }))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
