package work

import (
	"fmt"
	"testing"

	"coordinator/frames"
)

// BenchmarkApply decides the smallest command and the most frequent fact.
func BenchmarkApply(b *testing.B) {
	b.Run("create", func(b *testing.B) {
		s := newState(b)
		env := s.now()
		cmd := create(b, 1, 1, "{}")
		c, err := Parse(cmd, alice, frames.MaxTypedPayload)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Apply(s, c, env); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprint("facts ", n), func(b *testing.B) {
			s := withRuns(b)
			s.running(7)
			var facts []*frames.TerminalSourceFact
			for seq := range uint64(n) {
				facts = append(facts, output(b, 7, seq+1, 10))
			}
			env := s.now()
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := AdmitFacts(s, theOwner, facts, env); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
