package work

import (
	"fmt"

	"coordinator/codec"
	"coordinator/frames"
)

// storedResult decodes the result inside an OPERATION record.
func storedResult(s Stored) (frames.OperationResult, error) {
	var op frames.Operation
	if err := codec.Decode(&op, s.Record.Payload); err != nil {
		return frames.OperationResult{}, fmt.Errorf("work: stored operation: %w", err)
	}
	return op.Result, nil
}

// Lookup answers GET_OPERATION_RESULT (protocol.md §6 [D-11]). With none of WORK_READ,
// WORK_COMMAND and ADMIN everything is a NOT_FOUND *[Refusal]; an operation that is absent,
// or not the viewer's to see, is UNKNOWN.
func Lookup(v View, id frames.OperationID, from Viewer) (frames.OperationResult, error) {
	if from.Scope&(frames.ScopeWorkRead|frames.ScopeWorkCommand|frames.ScopeAdmin) == 0 {
		return frames.OperationResult{}, frames.Refuse(frames.CodeNotFound, "no such operation")
	}
	stored, found, err := v.Record(OperationRef(id))
	if err != nil {
		return frames.OperationResult{}, err
	}
	if !found || !VisibleToLookup(frames.KindOperation, stored.Principal, from) {
		return frames.OperationResult{State: frames.OperationUnknown}, nil
	}
	return storedResult(stored)
}
