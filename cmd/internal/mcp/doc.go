// Package mcp lets agents work with a coordinator over the Model Context Protocol: tools that
// read, command and wait, and resources that tell when they change.
//
// What it shows comes from a [client.Replica], so that an answer is one whole view and says how
// old it may be; what it commands goes through a [client.Session] under an OperationId that is
// kept beside the context file, with the whole command, until nobody can ask about it any more.
// A call that is repeated with its OperationId is therefore the same command, whatever was lost
// in between: the answer, the coordinator, or this process.
//
// Everything that a peer can make grow has a bound: calls at once, bytes of a result, watched
// resources, time of a wait. Text out of records and outputs is data: it is made inert, and
// descriptions tell agents not to follow it.
package mcp
