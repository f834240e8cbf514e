package frames

import (
	"errors"
	"fmt"

	"coordinator/codec"
)

// Code is an error code of protocol.md §13.
type Code uint16

const (
	CodeVersionIncompatible  Code = 1
	CodeFrameTooLarge        Code = 2
	CodeMalformedMessage     Code = 3
	CodeProtocolError        Code = 4
	CodeAuthenticationFailed Code = 5
	CodeCapabilityRequired   Code = 6
	CodeScopeDenied          Code = 7
	CodeStaleAuthority       Code = 8
	CodeAuthorityFenced      Code = 9
	CodeOperationConflict    Code = 10
	CodeRevisionConflict     Code = 11
	CodeCursorInvalid        Code = 12
	CodeResourceExhausted    Code = 13
	CodeNotFound             Code = 14
	CodeInternal             Code = 255
)

var codeNames = map[Code]string{
	CodeVersionIncompatible:  "VERSION_INCOMPATIBLE",
	CodeFrameTooLarge:        "FRAME_TOO_LARGE",
	CodeMalformedMessage:     "MALFORMED_MESSAGE",
	CodeProtocolError:        "PROTOCOL_ERROR",
	CodeAuthenticationFailed: "AUTHENTICATION_FAILED",
	CodeCapabilityRequired:   "CAPABILITY_REQUIRED",
	CodeScopeDenied:          "SCOPE_DENIED",
	CodeStaleAuthority:       "STALE_AUTHORITY",
	CodeAuthorityFenced:      "AUTHORITY_FENCED",
	CodeOperationConflict:    "OPERATION_CONFLICT",
	CodeRevisionConflict:     "REVISION_CONFLICT",
	CodeCursorInvalid:        "CURSOR_INVALID",
	CodeResourceExhausted:    "RESOURCE_EXHAUSTED",
	CodeNotFound:             "NOT_FOUND",
	CodeInternal:             "INTERNAL",
}

// String is the protocol's name of the code.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return fmt.Sprintf("CODE_%d", uint16(c))
}

// Known reports whether the protocol defines the code.
func (c Code) Known() bool { _, ok := codeNames[c]; return ok }

// Fatal reports whether the code always ends its connection (§13). INTERNAL does so only
// when continuity is in doubt, and before the hello every error does.
func (c Code) Fatal() bool {
	switch c {
	case CodeVersionIncompatible, CodeFrameTooLarge, CodeMalformedMessage, CodeProtocolError,
		CodeAuthenticationFailed, CodeStaleAuthority, CodeAuthorityFenced:
		return true
	}
	return false
}

// A Refusal is an error with the code that its COORD_ERROR carries. Message is for
// people: at most 1,024 bytes and without anything of the peer's payload or any secret.
type Refusal struct {
	Code    Code
	Message string
}

func (r *Refusal) Error() string { return r.Code.String() + ": " + r.Message }

// Refuse makes a [Refusal].
func Refuse(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf is the code that err stands for: that of a [Refusal] in its chain, the code of a
// decoding error, else INTERNAL.
func CodeOf(err error) Code {
	var r *Refusal
	var e *codec.Error
	switch {
	case errors.As(err, &r):
		return r.Code
	case errors.Is(err, codec.ErrFrameTooLarge):
		return CodeFrameTooLarge
	case errors.As(err, &e):
		return CodeMalformedMessage
	}
	return CodeInternal
}
