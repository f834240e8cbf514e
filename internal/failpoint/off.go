//go:build !failpoint

package failpoint

// Enabled says whether this binary has fail points.
const Enabled = false

// Hit does nothing in this build.
func Hit(string) {}

// Set does nothing in this build; tests that need it carry the build tag or
// look at Enabled.
func Set(string, func()) (undo func()) { return func() {} }
