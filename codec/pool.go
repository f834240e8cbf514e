package codec

import "sync"

const (
	// roomy is how much room a destination must have for an encoding to go straight into
	// it. Others are staged, so that they grow once and by what is needed.
	roomy = 256
	// maxStage bounds what a pooled walker keeps for staging: the largest frame.
	maxStage = MaxFrame + HeaderSize
)

// bodies holds walkers between walks. A walk goes through methods of the message, so its
// Body cannot live on a stack; a fresh one per walk was a quarter of all memory that a
// coordinator under load took.
var bodies = sync.Pool{New: func() any { return new(Body) }}

func takeBody() *Body { return bodies.Get().(*Body) }

// give returns the walker. Nothing of what it walked stays in it but room for staging.
func (b *Body) give() {
	if len(b.unknown) > 0 {
		clear(b.unknown)
		b.unknown = b.unknown[:0]
	}
	if cap(b.stage) > maxStage {
		b.stage = nil
	}
	b.enc, b.staged, b.unsorted = false, false, false
	b.last, b.fields, b.given, b.walked = 0, 0, 0, 0
	b.err, b.in, b.out, b.image = nil, nil, nil, Image{}
	bodies.Put(b)
}

// begin prepares an encode that will append to dst.
func (b *Body) begin(dst []byte) {
	b.enc = true
	if b.staged = cap(dst)-len(dst) < roomy; b.staged {
		dst = b.stage[:0]
	}
	b.out = dst
}

// end appends what was encoded to dst, unless it lies there already. After an error it is
// dst as it was.
func (b *Body) end(dst []byte) ([]byte, error) {
	out := b.out
	if b.staged {
		b.stage = out
		if b.err == nil {
			out = append(dst, out...)
		}
	}
	if b.err != nil {
		return dst, b.err
	}
	return out, nil
}
