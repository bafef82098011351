//go:build linux

package faults

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-go/paddock/internal/servers"
)

// kind is a kind of fault.
type kind struct {
	name   string
	breaks bool // exclusion is not promised then: locks are lost, or run out early
	loses  bool // fence records are lost: nothing but clocks carries the order of tokens
	clock  bool // a server's clock is set
	draw   func(d *draw) fault
}

// fault is one, with all that chance decides about it decided.
type fault struct {
	kind
	lasts        time.Duration
	inject, heal func() // both return when it has begun, and is over
}

// draw is chance, in units of the TTL.
type draw struct {
	*rand.Rand
	ttl time.Duration
}

func (d *draw) between(from, to float64) time.Duration {
	return time.Duration((from + (to-from)*d.Float64()) * float64(d.ttl))
}

// deck deals kinds of faults, each once before any comes again.
type deck struct {
	draw
	kinds []kind
	left  []kind
}

func (d *deck) deal() fault {
	if len(d.left) == 0 {
		d.left = append(d.left, d.kinds...)
		d.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	k := d.left[0]
	d.left = d.left[1:]
	lasts := d.between(0.4, 2.2)
	f := k.draw(&d.draw)
	if f.kind = k; f.lasts == 0 {
		f.lasts = lasts
	}
	return f
}

func pick[T any](d *draw, from []T) T { return from[d.IntN(len(from))] }

func pausing(nodes ...*servers.Process) kind {
	return kind{name: "server paused", draw: func(d *draw) fault {
		n := pick(d, nodes)
		return fault{inject: n.Pause, heal: n.Resume}
	}}
}

func pausingTwo(nodes []*servers.Process) kind {
	return kind{name: "two servers paused", draw: func(d *draw) fault {
		both := d.Perm(len(nodes))[:2]
		return fault{
			inject: func() {
				for _, n := range both {
					nodes[n].Pause()
				}
			},
			heal: func() {
				for _, n := range both {
					nodes[n].Resume()
				}
			},
		}
	}}
}

// restarting kills a server, which forgets everything, and has it back soon.
func restarting(n *servers.Process) kind {
	return kind{name: "server killed", breaks: true, loses: true, draw: func(d *draw) fault {
		return fault{lasts: d.between(0.05, 0.5), inject: n.Kill, heal: n.Restart}
	}}
}

// restartingLate keeps a node that has forgotten everything away until its locks have run out anyway.
func restartingLate(nodes []*servers.Process) kind {
	return kind{name: "server killed", loses: true, draw: func(d *draw) fault {
		n := pick(d, nodes)
		return fault{lasts: d.between(1.2, 2), inject: n.Kill, heal: n.Restart}
	}}
}

func wiping(nodes ...*servers.Process) kind {
	return kind{name: "server wiped", breaks: true, loses: true, draw: func(d *draw) fault {
		n := pick(d, nodes)
		return fault{inject: func() { wipe(n) }, heal: func() {}}
	}}
}

// jumping sets the wall clock, forth or back, and leaves it there.
func jumping(s *servers.FaketimeServer) kind {
	return kind{name: "clock set", breaks: true, clock: true, draw: func(d *draw) fault {
		by := d.between(0.3, 2)
		if d.IntN(3) == 0 {
			by = -by
		}
		return fault{inject: func() { s.Jump(by) }, heal: func() {}}
	}}
}

// quorumFaults are those of members that elect a leader.
func quorumFaults(tb testing.TB, q *servers.Quorum) []kind {
	of := func(what string, inject, heal func(node int)) []kind {
		member := kind{name: "member " + what, draw: func(d *draw) fault {
			n := d.IntN(len(q.Nodes))
			return fault{inject: func() { inject(n) }, heal: func() { heal(n) }}
		}}
		leader := kind{name: "leader " + what, draw: func(*draw) fault {
			var n int
			return fault{inject: func() { n = q.Leader(tb); inject(n) }, heal: func() { heal(n) }}
		}}
		return []kind{member, leader}
	}
	reunite := func(int) { q.Heal() }
	kinds := of("paused", func(n int) { q.Nodes[n].Pause() }, func(n int) { q.Nodes[n].Resume() })
	kinds = append(kinds, of("killed", func(n int) { q.Nodes[n].Kill() }, func(n int) { q.Nodes[n].Restart() })...)
	kinds = append(kinds, of("isolated", q.Isolate, reunite)...)
	return append(kinds, of("silenced", q.Silence, reunite)...)
}

// linkFaults are those of the links of workers to nodes, by worker and node.
func linkFaults(links [][]*servers.Proxy) []kind {
	of := func(name string, spoil func(d *draw) func(*servers.Proxy)) kind {
		return kind{name: name, draw: func(d *draw) fault {
			var hit []*servers.Proxy
			worker, node := d.IntN(len(links)), d.IntN(len(links[0]))
			switch d.IntN(3) {
			case 0: // one worker is cut off
				hit = links[worker]
			case 1: // one link
				hit = append(hit, links[worker][node])
			case 2: // one node is, from all
				for _, l := range links {
					hit = append(hit, l[node])
				}
			}
			how := spoil(d)
			return fault{
				inject: func() {
					for _, p := range hit {
						how(p)
					}
				},
				heal: func() {
					for _, p := range hit {
						p.Pass()
					}
				},
			}
		}}
	}
	always := func(f func(*servers.Proxy)) func(*draw) func(*servers.Proxy) {
		return func(*draw) func(*servers.Proxy) { return f }
	}
	return []kind{
		of("link cut", always((*servers.Proxy).Cut)),
		of("link silent", always((*servers.Proxy).Hold)),
		of("replies lost", always((*servers.Proxy).LoseReplies)),
		of("requests delayed", func(d *draw) func(*servers.Proxy) {
			late := d.between(0.05, 1.2)
			return func(p *servers.Proxy) { p.DelayRequests(late) }
		}),
		of("replies delayed", func(d *draw) func(*servers.Proxy) {
			late := d.between(0.05, 1.2)
			return func(p *servers.Proxy) { p.DelayReplies(late) }
		}),
	}
}

// stopping stops a worker for longer than its leases live, in the middle of whatever it does.
func stopping(workers []*worker) kind {
	return kind{name: "worker stopped", draw: func(d *draw) fault {
		w := pick(d, workers)
		signal := func(s syscall.Signal) func() {
			return func() {
				if err := w.cmd.Process.Signal(s); err != nil {
					w.tb.Errorf("worker %d: %v", w.index, err)
				}
			}
		}
		return fault{lasts: d.between(1.2, 2.5), inject: signal(syscall.SIGSTOP), heal: signal(syscall.SIGCONT)}
	}}
}
