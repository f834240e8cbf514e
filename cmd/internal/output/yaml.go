package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// writeYAML writes a JSON value as YAML: the same members in the same order, numbers digit for
// digit, and text that would read as something else in quotes. element makes it the next
// element of a list.
func writeYAML(w io.Writer, raw []byte, element bool) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	node, err := yamlNode(d)
	if err != nil {
		return fmt.Errorf("yaml: %w", err)
	}
	if element {
		node = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{node}}
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(node); err != nil {
		return fmt.Errorf("yaml: %w", err)
	}
	if err := e.Close(); err != nil {
		return fmt.Errorf("yaml: %w", err)
	}
	_, err = w.Write(escape(b.Bytes(), func(r rune) string { return fmt.Sprintf(`\U%08x`, r) }))
	return err
}

// yamlNode reads the next JSON value.
func yamlNode(d *json.Decoder) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Delim:
		return yamlNodes(d, token)
	case json.Number:
		tag := "!!int"
		if bytes.ContainsAny([]byte(token), ".eE") {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: token.String()}, nil
	}
	node := new(yaml.Node)
	if err := node.Encode(token); err != nil {
		return nil, err
	}
	// "<<" would be a merge, and only in double quotes there are escapes.
	if s, text := token.(string); text && (node.Tag != "!!str" || strings.ContainsFunc(s, steers)) {
		node.Tag, node.Style = "!!str", yaml.DoubleQuotedStyle
	}
	return node, nil
}

// yamlNodes reads the rest of an object or array. Members and elements are nodes alike: those of
// an object are its names and values in turn. Of members of one name, which YAML does not have, the
// last stays.
func yamlNodes(d *json.Decoder, begin json.Delim) (*yaml.Node, error) {
	node := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	if begin == '[' {
		node.Kind, node.Tag = yaml.SequenceNode, "!!seq"
	}
	places := map[string]int{}
	for d.More() {
		child, err := yamlNode(d)
		if err != nil {
			return nil, err
		}
		node.Content = append(node.Content, child)
		if last := len(node.Content) - 1; begin == '{' && last%2 == 1 {
			name := node.Content[last-1].Value
			if at, twice := places[name]; twice {
				node.Content[at], node.Content = child, node.Content[:last-1]
				continue
			}
			places[name] = last
		}
	}
	if len(node.Content) == 0 {
		node.Style = yaml.FlowStyle // {} or []
	}
	_, err := d.Token()
	return node, err
}
