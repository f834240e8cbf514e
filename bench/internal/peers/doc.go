// Package peers drives the systems that the coordinator is compared with: etcd, NATS
// JetStream and Redis Streams. Each runs as one real process of its own, with a sync to
// disk before every acknowledgement, and is driven through its own client; etcd and NATS
// are this program again, with their servers embedded, and Redis is the machine's.
//
// One part is one load. Every load has its like in package own.
package peers

import (
	"coordinator/bench/internal/measure"
)

// Parts are the loads of all peers, grouped by what they are compared with.
func Parts() []measure.Part {
	return []measure.Part{
		{Name: "etcd/put", Run: etcdPut},
		{Name: "etcd/txn", Run: etcdTxn},
		{Name: "redis/xadd", Run: redisXadd},
		{Name: "nats/publish", Run: natsPublish},
		{Name: "etcd/watch100", Run: etcdWatch(100)},
		{Name: "nats/fanout100", Run: natsFan(100)},
		{Name: "redis/fanout100", Run: redisFan(100)},
		{Name: "etcd/watch500", Run: etcdWatch(500)},
		{Name: "nats/fanout500", Run: natsFan(500)},
		{Name: "redis/fanout500", Run: redisFan(500)},
		{Name: "nats/replay", Run: natsReplay},
		{Name: "etcd/range", Run: etcdRange},
		{Name: "etcd/connect", Run: etcdConnect},
	}
}

// Children are the servers that run as this program.
func Children() map[string]func(args []string) error {
	return map[string]func([]string) error{"etcd": serveEtcd, "nats": serveNATS}
}

// Modules names the peers' modules, whose versions a report tells.
func Modules() []string {
	return []string{"go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/client/v3", "github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go"}
}
