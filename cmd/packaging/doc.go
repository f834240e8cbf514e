// Package packaging holds what makes packages of the product, and the tests of that: the
// systemd units, users and directories in systemd/, the maintainer scripts, nfpm.yaml, and
// install.sh, which `make install` and `make deb` run.
//
// It has no code of its own. The tests of the units run with all others. Those of the Debian
// package need one, as `make check-packages` makes it.
package packaging
