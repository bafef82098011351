package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"time"
)

// workerEnv marks a process that the demo started to make a part of the requests.
const workerEnv = "PADDOCK_DEMO_WORKER"

// crew makes the requests of a row: a team in this process, or several in processes of their own.
type crew interface {
	prepare(ctx context.Context, x expiry) error
	run(ctx context.Context, start time.Time) (outcome, error)
}

// fleet is a crew of processes. Each is this program again, told what to do in lines of JSON on its standard input; it
// answers in such lines.
type fleet struct{ workers []*worker }

type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// assignment is the first line to a worker.
type assignment struct {
	Site     siteConfig `json:"site"`
	First    int        `json:"first"` // how many instances are played by others before it
	Requests int        `json:"requests"`
}

// order is what a worker does next: prepare for a variant, or make the requests at Start.
type order struct {
	Variant string    `json:"variant,omitempty"`
	Number  int       `json:"number,omitempty"` // of the expiry
	Start   time.Time `json:"start,omitzero"`
}

// report is the answer to an order.
type report struct {
	Outcome outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
}

// startFleet starts n processes and shares the requests out among them.
func startFleet(site siteConfig, n, requests int) (*fleet, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &fleet{}
	for i := range n {
		w := &worker{cmd: exec.Command(program)}
		w.cmd.Env = append(os.Environ(), workerEnv+"=1")
		w.cmd.Stderr = os.Stderr
		out, err := w.cmd.StdoutPipe()
		if err == nil {
			w.in, err = w.cmd.StdinPipe()
		}
		if err == nil {
			err = w.cmd.Start()
		}
		if err != nil {
			return nil, errors.Join(err, f.stop())
		}
		w.out = json.NewDecoder(bufio.NewReader(out))
		f.workers = append(f.workers, w)
		share := requests / n
		if i < requests%n {
			share++
		}
		if err := w.send(assignment{Site: site, First: i, Requests: share}); err != nil {
			return nil, errors.Join(err, f.stop())
		}
	}
	return f, nil
}

func (w *worker) send(message any) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = w.in.Write(append(b, '\n'))
	return err
}

// all gives every worker the order and collects their answers. When ctx ends, the workers are told to.
func (f *fleet) all(ctx context.Context, o order) (outcome, error) {
	stop := context.AfterFunc(ctx, func() {
		for _, w := range f.workers {
			_ = w.in.Close()
		}
	})
	defer stop()
	var (
		wg      sync.WaitGroup
		reports = make([]report, len(f.workers))
		errs    = make([]error, len(f.workers))
	)
	for i, w := range f.workers {
		if errs[i] = w.send(o); errs[i] != nil {
			continue
		}
		wg.Go(func() {
			if errs[i] = w.out.Decode(&reports[i]); errs[i] == nil && reports[i].Error != "" {
				errs[i] = fmt.Errorf("process %d: %s", i+1, reports[i].Error)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return outcome{}, context.Cause(ctx)
	}
	var sum outcome
	var first error
	for i, r := range reports {
		sum.add(r.Outcome)
		if first == nil {
			first = errs[i] // the others mostly say the same
		}
	}
	return sum, first
}

func (f *fleet) prepare(ctx context.Context, x expiry) error {
	_, err := f.all(ctx, order{Variant: x.variant.name, Number: x.number})
	return err
}

func (f *fleet) run(ctx context.Context, start time.Time) (outcome, error) {
	return f.all(ctx, order{Start: start})
}

// stop tells the workers to end, and waits for them.
func (f *fleet) stop() error {
	var errs []error
	for _, w := range f.workers {
		_ = w.in.Close()
	}
	for _, w := range f.workers {
		kill := time.AfterFunc(workerGrace, func() { _ = w.cmd.Process.Kill() })
		errs = append(errs, w.cmd.Wait())
		kill.Stop()
	}
	return errors.Join(errs...)
}

const workerGrace = 3 * time.Second

// demoWorker is what a process of a fleet does, until its standard input ends. Interrupts are its parent's business.
func demoWorker(stdin io.Reader, stdout io.Writer) int {
	signal.Ignore(endings...)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	var a assignment
	if err := in.Decode(&a); err != nil {
		return 1
	}
	orders := make(chan order)
	go func() {
		defer close(orders)
		for {
			var o order
			if err := in.Decode(&o); err != nil {
				cancel(errors.New("the demo was ended"))
				return
			}
			orders <- o
		}
	}()
	s, err := openSite(a.Site)
	if err == nil {
		defer s.close()
	}
	t := &team{site: s, instances: 1, first: a.First, requests: a.Requests}
	for o := range orders {
		var r report
		switch {
		case err != nil:
			r.Error = err.Error()
		case o.Variant != "":
			v, _ := variantNamed(o.Variant)
			if err := t.prepare(ctx, expiry{v, o.Number}); err != nil {
				r.Error = err.Error()
			}
		default:
			o, err := t.run(ctx, o.Start)
			if r.Outcome = o; err != nil {
				r.Error = err.Error()
			}
		}
		if out.Encode(r) != nil {
			return 1
		}
	}
	return 0
}
