package client

// A Stage is something that can take long.
type Stage uint8

// Stages of [Progress], and what they count.
const (
	// StageSnapshot takes a snapshot: records that have come. How many there will be is not known.
	StageSnapshot Stage = iota + 1
	// StageSave writes a snapshot file: bytes.
	StageSave
	// StageVerify checks a snapshot file: bytes.
	StageVerify
	// StageHistory reads the event log: events that were passed, of those that there were when the
	// reading began.
	StageHistory
)

// Progress is how far a stage has come. A total that is not known is zero.
type Progress struct {
	Stage       Stage
	Done, Total uint64
}

// progress tells whoever wants to know.
func (c *Conn) progress(s Stage, done, total uint64) {
	if c.opts.Progress != nil {
		c.opts.Progress(Progress{s, done, total})
	}
}
