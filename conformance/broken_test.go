package conformance_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/memlock"
)

// broken are Lockers that break a rule each, and the case that has to find it.
var broken = []struct {
	flaw  string
	fails string
	open  func(tb testing.TB, flaw string) conformance.Backend
}{
	{grantsWhatIsHeld, "Rule01/OneKey", brokenShelf},
	{grantsWhatIsHeld, "Rule01/ManyKeys", brokenShelf},
	{grantsWhatIsHeld, "Rule01/ManyTriesOneWinner", brokenShelf},
	{expiresEarly, "Rule01/LeasesThatRunOut", brokenShelf},
	{triesPatiently, "Rule02/HeldIsErrHeldAtOnce", brokenLocker},
	{bareErrHeld, "Rule02/HeldIsErrHeldAtOnce", brokenLocker},
	{releasesLater, "Rule02/HeldIsErrHeldAtOnce", brokenLease},
	{sleepsLong, "Rule03/WokenAfterRelease", brokenLocker},
	{sleepsLong, "Rule03/WokenAfterExpiry", brokenLocker},
	{pollsUnfairly, "Rule03/FirstComeFirstServed", brokenLocker},
	{holdEndsWithCtx, "Rule04/ContextEndsNotTheHold", brokenLocker},
	{deafToCtx, "Rule04/ContextEndsTheWait", brokenLocker},
	{heldForATimeout, "Rule04/ContextEndsTheWait", brokenLocker},
	{losesTheCause, "Rule04/ContextEndsTheWait", brokenLocker},
	{ttlEndsTheWait, "Rule04/TTLBoundsNotTheWait", brokenLocker},
	{deafToCtx, "Rule04/EndedContext", brokenLocker},
	{losesValues, "Rule04/LeaseContext", brokenLocker},
	{undoDoesNothing, "Rule05/AbandonedAttemptsLeaveNothing", brokenShelf},
	{undoDoesNothing, "Rule05/RepliesLost", brokenShelf},
	{undoDoesNothing, "Rule05/RepliesDelayed", brokenShelf},
	{undoLeavesNoMarker, "Rule05/RequestsDelayedPastCleanUp", brokenShelf},
	{deafToCtx, "Rule05/LinkSilent", brokenLocker},
	{releasesTwice, "Rule06/RepeatedReleaseTouchesNobody", brokenLease},
	{releasesTwice, "Rule06/LateReleaseTouchesNobody", brokenLease},
	{sameOwner, "Rule06/OwnersAreFresh", brokenLease},
	{undoDoesNothing, "Rule06/LostReplyOfAcquire", brokenShelf},
	{promisesMoreThanKept, "Rule07/NobodyEntersBeforeDeadline", brokenShelf},
	{neverEnds, "Rule07/ContextEndsAtDeadline", brokenLease},
	{countsFromTheReply, "Rule07/CountedFromTheSending", brokenShelf},
	{renewDoesNothing, "Rule08/LivesManyTTLs", brokenShelf},
	{renewDoesNothing, "Rule08/ManyLeases", brokenShelf},
	{renewDoesNothing, "Rule08/SurvivesShortSilence", brokenShelf},
	{renewDoesNothing, "Rule08/SurvivesShortCut", brokenShelf},
	{goroutineEach, "Rule08/ManyLeases", brokenLocker},
	{neverExpires, "Rule09/CutOffBeforeTheNextEnters", brokenShelf},
	{neverExpires, "Rule18/HolderNeverReleases", brokenShelf},
	{releasesOthers, "Rule09/CutOffBeforeTheNextEnters", brokenShelf},
	{neverEnds, "Rule09/SilentBeforeTheNextEnters", brokenLease},
	{renewsOthers, "Rule09/ServerForgets", brokenShelf},
	{renewCreates, "Rule10/RenewalInFlight", brokenShelf},
	{waitsForNothing, "Rule10/UnreachableBySilence", brokenLease},
	{waitsForNothing, "Rule10/UnreachableByCut", brokenLease},
	{tokensStall, "Rule11/TokensRise", brokenShelf},
	{tokensGoBack, "Rule11/TokensRise", brokenShelf},
	{tokensStall, "Rule11/TokensRiseAfterExpiry", brokenShelf},
	{tokensGoBack, "Rule01/OneKey", brokenShelf},
	{neverExpires, "Rule12/KilledHolder", brokenShelf},
	{neverExpires, "Rule12/StoppedHolder", brokenShelf},
	{reentrant, "Rule13/StrangerToItself", brokenLocker},
	{losesValues, "Rule13/WouldWaitForItself", brokenLocker},
	{blindToCase, "Rule14/DistinctKeysNeverMeet", brokenLocker},
	{cleansPaths, "Rule14/DistinctKeysNeverMeet", brokenLocker},
	{stopsAtNUL, "Rule14/DistinctKeysNeverMeet", brokenLocker},
	{locksHashTags, "Rule14/DistinctKeysNeverMeet", brokenLocker},
	{trimsSpace, "Rule14/DistinctKeysNeverMeet", brokenLocker},
	{repairsArguments, "Rule14/InvalidArguments", brokenLocker},
	{heldForATimeout, "Rule15/EachFailureIsOneError", brokenLocker},
	{hidesTheDriver, "Rule15/DriversErrorIsInTheChain", brokenLocker},
	{neverShortens, "Rule16/ShorterOnTheServer", brokenShelf},
	{lowersAfterwards, "Rule16/LowersDeadlineBeforeTheAnswer", brokenLease},
	{claimsOrder, "Rule16/ShorterOvertaken", brokenShelf},
	{renewLowers, "Rule16/RenewalOvertaken", brokenShelf},
	{noMaxHold, "Rule16/MaxHold", brokenLocker},
	{neverGivesUp, "Rule17/AcquireOnASilentLink", brokenLocker},
	{givesUpAtOnce, "Rule17/AcquireOutlivesAShortCut", brokenLocker},
	{heldForATimeout, "Rule17/TryAcquireOnACutLink", brokenLocker},
	{closeReleases, "Rule18/HolderInside", brokenLocker},
	{closeReleases, "Rule18/HolderNeverReleases", brokenLocker},
	{closesNothing, "Rule18/EndsEverything", brokenLocker},
	{leaksAGoroutine, "Rule19/NoGoroutineIsLeft", brokenLocker},
	{undoDoesNothing, "Rule19/NothingIsLeft", leavesAKey},
	{inspectsAnother, "Inspect/Holder", brokenLocker},
	{asksTwice, "Wire/Costs", brokenLocker},
	{pollsUnfairly, "Wire/WaitingGoroutines", brokenLocker},
}

const (
	flawEnv = "PADDOCK_TEST_FLAW"
	caseEnv = "PADDOCK_TEST_CASE"
)

// TestBroken runs the case that has to fail, in a process of its own, since a test cannot fail and go on. The same case
// passes in TestHealthy.
func TestBroken(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	places := make(chan struct{}, 8)
	var running sync.WaitGroup
	defer running.Wait()
	for _, b := range broken {
		running.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			t.Run(b.flaw+"/"+b.fails, func(t *testing.T) {
				run := regexp.MustCompile(`[^/]+`).ReplaceAllString("TestSubject/"+b.fails, "^$0$$")
				cmd := exec.Command(self, "-test.run="+run, "-test.v", "-test.timeout=2m")
				cmd.Env = append(os.Environ(), flawEnv+"="+b.flaw, caseEnv+"="+b.fails)
				out, err := cmd.CombinedOutput()
				if err == nil {
					t.Fatalf("%s passes with a Locker that %s:\n%s", b.fails, b.flaw, out)
				}
				for _, want := range []string{"--- FAIL: TestSubject/" + b.fails + " ", b.fails + " is about this rule: "} {
					if !strings.Contains(string(out), want) {
						t.Errorf("a Locker that %s: the output does not have %q:\n%s", b.flaw, want, out)
					}
				}
			})
		})
	}
}

// TestSubject is what TestBroken runs.
func TestSubject(t *testing.T) {
	flaw, fails := os.Getenv(flawEnv), os.Getenv(caseEnv)
	for _, b := range broken {
		if b.flaw == flaw && b.fails == fails {
			conformance.Hurry()
			conformance.Run(t, b.open(t, flaw))
			return
		}
	}
	t.Skip("child process of TestBroken")
}

// TestBare runs the suite on a Backend with nothing but Open: what is skipped says which rule that leaves unchecked.
func TestBare(t *testing.T) {
	const bare = "PADDOCK_TEST_BARE"
	if os.Getenv(bare) != "" {
		first := memlock.New(nil)
		conformance.Run(t, conformance.Backend{
			Open: func(testing.TB) paddock.Locker { return memlock.New(&memlock.Options{Shared: first}) },
		})
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestBare$/^(Rule05|Rule10|Wire)$", "-test.v")
	cmd.Env = append(os.Environ(), bare+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"--- SKIP: TestBare/Rule05/RequestsDelayedPastCleanUp ",
		"Rule05/RequestsDelayedPastCleanUp needs Backend.Faults.Open. The rule: clean-up also stops a request that arrives after it.",
		"--- SKIP: TestBare/Rule10/RenewalInFlight ",
		"--- SKIP: TestBare/Wire/Costs ",
		"Wire/Costs needs Backend.Commands. The rule: ",
		"--- PASS: TestBare/Rule05/AbandonedAttemptsLeaveNothing ",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output does not have %q:\n%s", want, out)
		}
	}
}

func brokenShelf(tb testing.TB, flaw string) conformance.Backend {
	s := serve(tb, newShelf(flaw))
	tb.(*testing.T).Setenv(shelfEnv, s.addr)
	return s.backend()
}

// leavesAKey has something left that nobody uses.
func leavesAKey(tb testing.TB, _ string) conformance.Backend {
	b := brokenShelf(tb, "")
	b.Left = func(context.Context) ([]string, error) { return []string{"shelf/stray"}, nil }
	return b
}
