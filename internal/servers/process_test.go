package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const orphanMaker = "PADDOCK_SERVERS_ORPHAN_MAKER"

func TestMain(m *testing.M) {
	if os.Getenv(orphanMaker) != "" {
		p, err := startRedis(nil)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.Pid())
		select {}
	}
	os.Exit(m.Run())
}

// A test binary that is killed cleans nothing up; its servers end all the
// same, and the next binary removes their data.
func TestKilledBinaryLeavesNothing(t *testing.T) {
	t.Parallel()
	Redis(t) // which finds out whether servers can be started at all
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), orphanMaker+"=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	server, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the child said %q, want a process id", line)
	}
	if !alive(server) {
		t.Fatal("the server is gone before its binary")
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	until(t, "gone with its binary", func() error {
		// What init has not collected yet is as gone as can be.
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", server)); err == nil && !strings.Contains(string(stat), ") Z ") {
			return errors.New("the server runs on")
		}
		return nil
	})
}

func TestAddressesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 100 {
		addr := address()
		if seen[addr] {
			t.Fatalf("%s was given out twice", addr)
		}
		seen[addr] = true
	}
}

// A process on its way to its own program does not take a proxy's address away.
func TestAddressWhileStarting(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	defer starting.Wait()
	defer stop()
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				_ = exec.Command("true").Run()
			}
		})
	}
	addr := address()
	for range 2_000 {
		l, err := listenAt(addr)
		must(t, err)
		l.Close()
	}
}
