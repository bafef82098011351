package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/fencing/redisguard"
	"github.com/paddock-go/paddock/redislock"
)

// stored is an account on a Redis server. Its guard knows it by its key.
type stored struct {
	*redisguard.Guard
	client *redis.Client
}

func (s stored) Read(ctx context.Context) (int, error) { return s.client.Get(ctx, resource).Int() }

func (s stored) Write(ctx context.Context, balance int) error {
	return s.client.Set(ctx, resource, balance, 0).Err()
}

func (s stored) WriteFenced(ctx context.Context, f fencing.Fence, balance int) error {
	return s.Set(ctx, f, resource, balance, 0)
}

// connect opens the lock and the account.
func connect(rawURL string) (*redislock.Locker, stored, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" {
		return nil, stored{}, errors.New("the URL has to be of a Redis server, as in redis://localhost:6379")
	}
	o, err := redis.ParseURL(rawURL)
	if err != nil {
		return nil, stored{}, err
	}
	o.ContextTimeoutEnabled = true
	s := stored{client: redis.NewClient(o)}
	if s.Guard, err = redisguard.New(s.client, nil); err != nil {
		return nil, s, err
	}
	l, err := redislock.New(s.client, nil)
	return l, s, err
}

// onRedis is the story in two processes.
func onRedis(ctx context.Context, rawURL string) (w *world, end func(), err error) {
	locker, account, err := connect(rawURL)
	if err != nil {
		return nil, nil, err
	}
	end = func() {
		account.client.Del(ctx, resource) // the mark stays, as marks do
		locker.Close()
		account.client.Close()
	}
	return &world{
		account: account,
		locker:  locker,
		paused:  "is stopped (SIGSTOP)",
		first:   func(guarded bool) (*a, error) { return start(role{rawURL, guarded}) },
	}, end, nil
}

const processEnv = "PADDOCK_EXAMPLE_PAUSED" // what A's process is to do

// role is what A's process is told.
type role struct {
	URL     string
	Guarded bool
}

// start starts this program as A.
func start(r role) (*a, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	arg, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), processEnv+"="+string(arg))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	says := make(chan string, 8)
	go func() {
		defer close(says)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			says <- lines.Text()
		}
	}()
	return &a{
		says: says,
		stop: func() error { return stop(cmd.Process) },
		wake: func() error {
			if _, err := fmt.Fprintln(in); err != nil {
				return err
			}
			return resume(cmd.Process)
		},
		err: cmd.Wait,
	}, nil
}

// process is A, in a process of its own.
func process(arg string) int {
	var r role
	err := json.Unmarshal([]byte(arg), &r)
	if err == nil {
		err = r.play()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "paused: A:", err)
		return 1
	}
	return 0
}

func (r role) play() error {
	locker, account, err := connect(r.URL)
	if err != nil {
		return err
	}
	defer locker.Close()
	tell := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	return deposit(context.Background(), locker, account, r.Guarded, tell, func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until it is woken; stopped meanwhile
	})
}
