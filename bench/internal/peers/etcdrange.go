package peers

import (
	"context"
	"fmt"
	"io"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"coordinator/bench/internal/measure"
)

const (
	rangeKeys   = 100_000
	rangePerTxn = 125 // a transaction holds 128 operations at most
	rangeKeyLen = 15
)

// etcdRange reads 100,000 keys: page by page, at once, and as the snapshot stream.
func etcdRange(ctx context.Context, e *measure.Env) error {
	s, err := startEtcd(ctx, e, writers)
	if err != nil {
		return err
	}
	defer s.stop()
	if err := s.fill(ctx); err != nil {
		return err
	}
	c := s.clients[0]
	payload := float64(rangeKeys*(rangeKeyLen+measure.ValueSize)) / 1e6
	for range 3 {
		began := time.Now()
		if err := rangePages(ctx, c); err != nil {
			return err
		}
		e.Rec.Add("etcd.range.pages", "MB/s", payload/time.Since(began).Seconds())
		began = time.Now()
		r, err := c.Get(ctx, "/r/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		e.Rec.Add("etcd.range.once", "MB/s", payload/time.Since(began).Seconds())
		if len(r.Kvs) != rangeKeys {
			return fmt.Errorf("the range gave %d keys of %d", len(r.Kvs), rangeKeys)
		}
		began = time.Now()
		stream, err := c.Snapshot(ctx)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, stream)
		stream.Close()
		if err != nil {
			return err
		}
		took := time.Since(began).Seconds()
		e.Rec.Add("etcd.snapshot", "MB/s", float64(n)/1e6/took)
		e.Rec.Add("etcd.snapshot.payload", "MB/s", payload/took) // by the state it carries, as a range counts
	}
	return nil
}

func (s *etcd) fill(ctx context.Context) error {
	value := string(measure.Payload(3, measure.ValueSize))
	const fillers = 16
	g, ctx := errgroup.WithContext(ctx)
	for w := range fillers {
		g.Go(func() error {
			for i := w; i < rangeKeys/rangePerTxn; i += fillers {
				ops := make([]clientv3.Op, rangePerTxn)
				for j := range ops {
					ops[j] = clientv3.OpPut(fmt.Sprintf("/r/%012d", i*rangePerTxn+j), value)
				}
				if _, err := s.clients[w%writers].Txn(ctx).Then(ops...).Commit(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// rangePages reads all keys at one revision, 512 at a time.
func rangePages(ctx context.Context, c *clientv3.Client) error {
	key, end, revision, got := "/r/", clientv3.GetPrefixRangeEnd("/r/"), int64(0), 0
	for {
		r, err := c.Get(ctx, key, clientv3.WithRange(end), clientv3.WithLimit(512), clientv3.WithRev(revision))
		if err != nil {
			return err
		}
		revision = r.Header.Revision
		if got += len(r.Kvs); !r.More {
			break
		}
		key = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
	if got != rangeKeys {
		return fmt.Errorf("the pages gave %d keys of %d", got, rangeKeys)
	}
	return nil
}
