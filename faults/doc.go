// Package faults puts every backend to the test: workers in several processes take turns on a few keys while their servers, their
// links and they themselves are stopped, killed, wiped and cut off, one fault after another, as drawn from a seed. What they have
// seen is recorded, and judged when the round is over.
//
//	make faults DURATION=30m SEED=1 BACKEND=etcd
//
// The checks: no two leases of a key inside their trust windows at the same time; tokens rise; a register behind a guard is
// linearizable, loses no update and takes no stale write; a holder learns of its loss by the deadline; waiters get on when a fault is
// over; nothing is left behind. Beside the guarded register is one without a guard, which counts what the guard is good for.
//
// The suite runs on Linux; the checks run anywhere.
package faults
