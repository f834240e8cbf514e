package peers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// A respConn is a client of the Redis protocol, version 2, as far as the loads need it.
// One goroutine uses it at a time.
type respConn struct {
	net.Conn
	r   *bufio.Reader
	out []byte
}

func dialRESP(sock string) (*respConn, error) {
	c, err := net.Dial("unix", sock)
	if err != nil {
		return nil, err
	}
	return newRESP(c), nil
}

func newRESP(c net.Conn) *respConn {
	return &respConn{Conn: c, r: bufio.NewReaderSize(c, 64<<10)}
}

// do sends one command and gives its reply: a string, an int64, bytes, nil or a list.
func (c *respConn) do(args ...string) (any, error) {
	b := append(c.out[:0], '*')
	b = append(strconv.AppendInt(b, int64(len(args)), 10), "\r\n"...)
	for _, a := range args {
		b = append(strconv.AppendInt(append(b, '$'), int64(len(a)), 10), "\r\n"...)
		b = append(append(b, a...), "\r\n"...)
	}
	c.out = b
	if _, err := c.Write(b); err != nil {
		return nil, err
	}
	return c.reply()
}

func (c *respConn) reply() (any, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 {
		return nil, errors.New("redis: a short reply")
	}
	text := string(line[1 : len(line)-2])
	switch line[0] {
	case '+':
		return text, nil
	case '-':
		return nil, errors.New("redis: " + text)
	case ':':
		return strconv.ParseInt(text, 10, 64)
	case '$':
		return c.bulk(text)
	case '*':
		return c.array(text)
	}
	return nil, fmt.Errorf("redis: a reply of no known kind %q", line[0])
}

func (c *respConn) bulk(length string) (any, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return nil, err
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return nil, err
	}
	return b[:n], nil
}

func (c *respConn) array(length string) (any, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return nil, err
	}
	a := make([]any, n)
	for i := range a {
		if a[i], err = c.reply(); err != nil {
			return nil, err
		}
	}
	return a, nil
}
