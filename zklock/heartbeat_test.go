package zklock

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// TestProof looks at which heartbeats count, and when.
func TestProof(t *testing.T) {
	begun := time.Now()
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	p := proof{asked: at(0), timeout: time.Second, between: 200 * time.Millisecond}
	for _, c := range []struct{ sent, heard, counted int }{
		{300, 320, 0}, // the connect request is all there is
		{510, 530, 0}, // 190 ms after the answer to the first beat: the leader need not have pinged since
		{525, 540, 300},
		{900, 910, 525},
		{1000, 1010, 525}, // the one at 900 is too fresh, and there is none between
		{1300, 1900, 1000},
		{2000, 2010, 1000}, // the last was answered 100 ms ago, however long ago it was sent
		{2100, 2110, 1300},
	} {
		if got := p.counted(at(c.sent)); !got.Equal(at(c.counted)) {
			t.Errorf("a beat sent at %d ms proves the one at %v; want %d ms", c.sent, got.Sub(begun), c.counted)
		}
		p.beats = append(p.beats, heartbeat{at(c.sent), at(c.heard)})
	}
	if len(p.beats) > 3 {
		t.Errorf("%d beats are kept", len(p.beats))
	}
}

// TestHeartbeats looks at what keeps a session alive: nothing that is logged while nothing depends on it, then writes.
func TestHeartbeats(t *testing.T) {
	const opSync, opSetData = 9, 5
	var mu sync.Mutex
	var beats []int32
	seen := func(opcodes ...int32) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, opcode := range opcodes {
				if !slices.Contains(beats, opcode) {
					return false
				}
			}
			return true
		}
	}
	forget := func() {
		mu.Lock()
		defer mu.Unlock()
		beats = nil
	}
	addrs, o := servers.SharedZooKeeper(t), *options(fresh())
	o.Dialer = spying(func(opcode int32, packet []byte) {
		if opcode != opPing && heartbeatPacket(opcode, packet) {
			mu.Lock()
			defer mu.Unlock()
			beats = append(beats, opcode)
		}
	})
	l := locker(t, addrs, o)
	release(t, acquire(t, l, "key"))
	forget()
	eventually(t, "three heartbeats of an idle session that are syncs alone", func() bool {
		mu.Lock()
		defer mu.Unlock()
		last := beats[max(0, len(beats)-6):] // a beat that began before is still seen to write
		return len(last) == 6 && !slices.ContainsFunc(last, func(opcode int32) bool { return opcode != opSync })
	})

	held := acquire(t, l, "key")
	forget()
	eventually(t, "heartbeats of a holder", seen(opSync, opMulti))

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	o.Dialer = nil
	other := locker(t, addrs, o)
	release(t, held)
	held = acquire(t, other, "key")
	forget()
	waiter := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, "key", nil)
		waiter <- err
	}()
	eventually(t, "heartbeats of a waiter", seen(opSync, opSetData))
	cancel()
	is(t, <-waiter, context.Canceled)
	release(t, held)
}

// TestDeletedByHand has an operator delete the node of a holder.
func TestDeletedByHand(t *testing.T) {
	const leases = 3 * maxChecks
	addrs, o := servers.SharedZooKeeper(t), *options(fresh())
	conn := client(t, addrs)
	l, other := locker(t, addrs, o), locker(t, addrs, o)
	held := make([]*paddock.Lease, leases)
	for i := range held {
		held[i] = acquire(t, l, fmt.Sprintf("key/%d", i))
	}
	// Many at a time: the check of one must not hide another's.
	for i := range leases / 12 {
		parent := below(o, held[i].Key())
		children, _, err := conn.Children(parent)
		if err != nil || len(children) != 1 {
			t.Fatalf("the nodes of a held key are %q, %v", children, err)
		}
		if err := conn.Delete(parent+"/"+children[0], -1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range leases / 12 {
		select {
		case <-held[i].Context().Done():
		case <-time.After(soon):
			t.Fatalf("a holder whose node was deleted has not noticed within %v", soon)
		}
		is(t, held[i].Err(), paddock.ErrLost)
		if !strings.Contains(held[i].Err().Error(), "deleted") {
			t.Errorf("the lease ended with %v", held[i].Err())
		}
		next := acquire(t, other, held[i].Key())
		is(t, held[i].Release(context.Background()), paddock.ErrLost)
		refused(t, l, held[i].Key())
		release(t, next)
	}
	for i, lease := range held {
		if i >= leases/12 {
			release(t, lease)
		}
	}
}

// TestExtend asks for what is not there any more.
func TestExtend(t *testing.T) {
	addrs, o := servers.SharedZooKeeper(t), *options(fresh())
	o.SessionTimeout = 20 * time.Second // no heartbeat comes before
	l := locker(t, addrs, o)
	lease := acquire(t, l, "key")
	if err := lease.Extend(context.Background(), time.Minute); err != nil || lease.TTL() != o.SessionTimeout {
		t.Errorf("Extend: %v; the TTL is %v, of a session of %v", err, lease.TTL(), o.SessionTimeout)
	}
	fixed, err := l.Acquire(context.Background(), "fixed", &paddock.Options{TTL: 30 * time.Second, NoRenew: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := fixed.Extend(context.Background(), time.Minute); err != nil || fixed.TTL() != time.Minute {
		t.Errorf("Extend of a lease that is not renewed: %v; the TTL is %v", err, fixed.TTL())
	}
	conn := client(t, addrs)
	for _, lease := range []*paddock.Lease{lease, fixed} {
		parent := below(o, lease.Key())
		children, _, err := conn.Children(parent)
		if err != nil || len(children) != 1 {
			t.Fatalf("the nodes of a held key are %q, %v", children, err)
		}
		if err := conn.Delete(parent+"/"+children[0], -1); err != nil {
			t.Fatal(err)
		}
		is(t, lease.Extend(context.Background(), time.Minute), paddock.ErrLost)
		is(t, lease.Err(), paddock.ErrLost)
	}
}

// TestConnectPacket checks what the link reads from and writes into packets.
func TestConnectPacket(t *testing.T) {
	multi := make([]byte, atPath+4)
	binary.BigEndian.PutUint32(multi[atOpcode:], opMulti)
	binary.BigEndian.PutUint32(multi[atPath:], 4)
	for packet, want := range map[string]string{
		string(multi) + "/key": "/key", string(multi) + "/key/more": "/key", string(multi) + "/ke": "", string(multi[:20]): "", "": "",
	} {
		if got := named([]byte(packet)); string(got) != want {
			t.Errorf("a packet names %q; want %q", got, want)
		}
	}
}

// TestRepliesAfterWatches: on a link that has watches to set, replies wait until those are sent, or for a while should they not be.
func TestRepliesAfterWatches(t *testing.T) {
	for _, sends := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			c := &link{
				Conn: near, session: &session{begun: time.Now(), life: t.Context()}, asked: time.Now(), answered: true,
				watches: make(chan struct{}),
			}
			go func() {
				_, _ = far.Write([]byte("reply"))
				_, _ = io.Copy(io.Discard, far)
			}()
			begun, read := time.Now(), make(chan time.Duration)
			go func() {
				if _, err := c.Read(make([]byte, 100)); err != nil {
					t.Error(err)
				}
				read <- time.Since(begun)
			}()
			want := watchesWait
			if sends {
				want = watchesWait / 2
				time.Sleep(want)
				for range 2 { // there may be several
					if _, err := c.Write([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, opSetWatches}); err != nil {
						t.Error(err)
					}
				}
			}
			if took := <-read; took != want {
				t.Errorf("watches sent: %v: a reply was read after %v, want %v", sends, took, want)
			}
		})
	}
}
