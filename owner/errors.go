package owner

import (
	"errors"
	"fmt"

	"coordinator/frames"
)

// ErrFailed says that the journal could not be written, so that what is on disk is unknown:
// the owner answers nothing more and the process must stop.
var ErrFailed = errors.New("the owner's journal could not be written")

// errFenced drops what comes from a coordinator whose authority is not, or no longer, the one
// that this owner holds to.
var errFenced = errors.New("another activation has taken over")

// A CorruptError says that the journal is damaged. Nothing was changed and no fresh file takes
// its place: an owner that forgot its attempts would start them again.
type CorruptError struct{ File, Problem string }

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged: %s; nothing was changed. Restore a copy of it, or set the directory aside and "+
		"init a new owner, whose coordinators then count the old one as lost", e.File, e.Problem)
}

// A MissingError says that an owner's directory has no journal.
type MissingError struct{ File string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s does not exist; a new owner is made by init, a lost file is never replaced by an empty one", e.File)
}

// A SchemaError refuses a file of another schema version, which is left untouched.
type SchemaError struct {
	File       string
	Have, Want uint32
}

func (e *SchemaError) Error() string {
	if e.Have < e.Want {
		return fmt.Sprintf("%s has schema %d, this program works with %d; start the owner once, which migrates it", e.File, e.Have, e.Want)
	}
	return fmt.Sprintf("%s has schema %d, this program knows %d; run the program version that wrote it", e.File, e.Have, e.Want)
}

// An IdentityError says that the journal belongs to another authority key than the one in its
// directory.
type IdentityError struct {
	File       string
	Have, Want frames.Fingerprint
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("%s belongs to the owner %s, the key beside it is of %s; put the matching key or file there", e.File, e.Have, e.Want)
}

// An UnsupportedError says what this system lacks for running processes.
type UnsupportedError struct{ System, Missing string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("processes cannot be run on %s: %s is missing; run the owner on Linux", e.System, e.Missing)
}
