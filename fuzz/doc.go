// Package fuzz holds the fuzz targets of everything that parses bytes of a peer or of an
// operator: the envelope, TLV bodies, every frame, record and positional value, the
// certificate, command payloads and the lines of a registry.
//
// The seeds are the golden vectors (package vectors). Each target asserts the property of
// its codec and not mere survival: what decodes encodes again, to the canonical form, which
// decodes to the same value; and it is the input itself when that was canonical already and
// held no field that a decoder skips.
package fuzz
