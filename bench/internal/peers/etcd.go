package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"coordinator/bench/internal/measure"
)

// writers is how many connections a load of writes is spread over.
const writers = 4

// readyWait bounds a server's start.
const readyWait = 10 * time.Second

// serveEtcd runs one member with its defaults, which sync its log, and with a plain and a
// mutual TLS listener for clients. Its data are thrown away, so it stops without grace.
func serveEtcd(args []string) error {
	dir, certs := args[0], args[1]
	ports, err := measure.FreePorts(3)
	if err != nil {
		return err
	}
	plain, secure := fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	peer := url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports[2])}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.QuotaBackendBytes = dir, "fatal", 8<<30
	cfg.ListenClientUrls = []url.URL{{Scheme: "http", Host: plain}, {Scheme: "https", Host: secure}}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.ClientTLSInfo.CertFile = filepath.Join(certs, "server.pem")
	cfg.ClientTLSInfo.KeyFile = filepath.Join(certs, "server.key")
	cfg.ClientTLSInfo.TrustedCAFile = filepath.Join(certs, "ca.pem")
	cfg.ClientTLSInfo.ClientCertAuth = true
	s, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	select {
	case <-s.Server.ReadyNotify():
	case err := <-s.Err():
		return err
	case <-time.After(readyWait):
		return errors.New("etcd did not become ready")
	}
	return measure.Serving(map[string]string{"plain": plain, "secure": secure})
}

// An etcd is a running member and the connections to it.
type etcd struct {
	child   *measure.Child
	clients []*clientv3.Client
}

// startEtcd starts a member with so many plain connections to it.
func startEtcd(ctx context.Context, e *measure.Env, conns int) (*etcd, error) {
	if err := measure.MakeCerts(e.Dir); err != nil {
		return nil, err
	}
	dir, err := e.TempDir("etcd")
	if err != nil {
		return nil, err
	}
	child, err := measure.StartChild(ctx, "etcd", dir, e.Dir)
	if err != nil {
		return nil, err
	}
	s := &etcd{child: child}
	if err := s.dial(ctx, conns); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// dial adds plain connections, each of which has made a request.
func (s *etcd) dial(ctx context.Context, n int) error {
	for range n {
		c, err := etcdClient(ctx, s.child.Ready["plain"], nil)
		if err != nil {
			return err
		}
		s.clients = append(s.clients, c)
		if _, err := c.Get(ctx, "x"); err != nil {
			return err
		}
	}
	return nil
}

func (s *etcd) stop() {
	for _, c := range s.clients {
		c.Close() //nolint:errcheck // the server goes next
	}
	s.child.Stop()
}

func etcdClient(ctx context.Context, addr string, t *tls.Config) (*clientv3.Client, error) {
	scheme := "http://"
	if t != nil {
		scheme = "https://"
	}
	return clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{scheme + addr}, DialTimeout: 5 * time.Second, TLS: t, Logger: zap.NewNop()})
}

// etcdPut puts values under random keys of 100,000.
func etcdPut(ctx context.Context, e *measure.Env) error {
	s, err := startEtcd(ctx, e, writers)
	if err != nil {
		return err
	}
	defer s.stop()
	value := string(measure.Payload(1, measure.ValueSize))
	for _, n := range []int{1, 64, 256} {
		err := e.Run(ctx, measure.Loop{
			Name: fmt.Sprintf("etcd.put.c%d", n), Workers: n, Warm: e.Window(300), Window: e.Window(750), Reps: 5, PID: s.child.PID(),
			Do: func(w, _ int) error {
				_, err := s.clients[w%writers].Put(ctx, fmt.Sprintf("/b/%08x", rand.Uint32N(100_000)), value)
				return err
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// etcdTxn puts a value if the key has the revision that this worker gave it last.
func etcdTxn(ctx context.Context, e *measure.Env) error {
	s, err := startEtcd(ctx, e, writers)
	if err != nil {
		return err
	}
	defer s.stop()
	value := string(measure.Payload(1, measure.ValueSize))
	revisions := make([]int64, 64)
	return e.Run(ctx, measure.Loop{
		Name: "etcd.txn.c64", Workers: 64, Warm: e.Window(300), Window: e.Window(750), Reps: 5, PID: s.child.PID(),
		Do: func(w, _ int) error {
			key := fmt.Sprintf("/t/%04d", w)
			r, err := s.clients[w%writers].Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revisions[w])).
				Then(clientv3.OpPut(key, value)).Commit()
			if err != nil {
				return err
			}
			if !r.Succeeded {
				return errors.New("the comparison failed")
			}
			revisions[w] = r.Header.Revision
			return nil
		},
	})
}

// etcdWatch fans puts out to n watchers, each on a connection of its own.
func etcdWatch(n int) func(context.Context, *measure.Env) error {
	return func(ctx context.Context, e *measure.Env) error {
		s, err := startEtcd(ctx, e, writers+n)
		if err != nil {
			return err
		}
		defer s.stop()
		subs := measure.NewSubscribers(n)
		watching, cancel := context.WithCancel(ctx)
		var watchers sync.WaitGroup
		defer func() { cancel(); watchers.Wait() }()
		for i, sub := range subs {
			changes := s.clients[writers+i].Watch(watching, "/w/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
			if r := <-changes; !r.Created {
				return errors.New("a watch was not created")
			}
			watchers.Go(func() {
				for r := range changes {
					now := measure.Now()
					for _, ev := range r.Events {
						sub.Take(ev.Kv.Value, now, uint64(ev.Kv.ModRevision))
					}
				}
			})
		}
		var next atomic.Uint64
		return e.FanBoth(ctx, fmt.Sprintf("etcd.fan%d", n), subs, s.child.PID(), func(w int, event []byte) error {
			_, err := s.clients[w%writers].Put(ctx, fmt.Sprintf("/w/%04d", next.Add(1)%1000), string(event))
			return err
		})
	}
}

// etcdConnect connects and makes one request, plain and with mutual TLS.
func etcdConnect(ctx context.Context, e *measure.Env) error {
	s, err := startEtcd(ctx, e, 0)
	if err != nil {
		return err
	}
	defer s.stop()
	mutual, err := measure.TLSConfig(e.Dir, "client", true)
	if err != nil {
		return err
	}
	for _, way := range []struct {
		name, addr string
		tls        *tls.Config
	}{
		{"etcd.connect", s.child.Ready["plain"], nil},
		{"etcd.connect.mtls", s.child.Ready["secure"], mutual},
	} {
		err := e.Connects(ctx, way.name, func() (io.Closer, error) {
			c, err := etcdClient(ctx, way.addr, way.tls)
			if err != nil {
				return nil, err
			}
			_, err = c.Get(ctx, "x")
			return c, err
		})
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}
