package guardtest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/paddock-go/paddock/fencing/guardtest"
)

// What is wrong with a guard.
const (
	acceptsStale      = "accepts what is stale"
	neverRaises       = "checks and does not raise the mark"
	acceptsTwins      = "accepts an equal token of another owner"
	refusesTwice      = "takes the same holder's second fence for stale"
	foldsOwners       = "does not tell owners by case"
	ignoresDomains    = "compares tokens of different domains"
	foldsDomains      = "does not tell domains by case"
	migrateForgets    = "forgets the mark when it is migrated"
	migrateCreates    = "makes a mark of what has none when it is migrated"
	migrateTakesAll   = "migrates from whatever domain"
	migrateLate       = "resets the mark when a migration is repeated"
	migrateRaces      = "migrates the mark that it read a moment ago"
	comparesFloats    = "compares tokens as floating-point numbers"
	comparesText      = "compares tokens as text"
	foldsResources    = "does not tell resources by case"
	stopsAtNUL        = "ends resources at a NUL"
	trimsSpace        = "trims resources"
	usesHashTags      = "has one mark for all that shares a hash tag"
	cutsNames         = "cuts long resources"
	forgets           = "forgets all but the last marks"
	acceptsZero       = "accepts the token 0"
	acceptsUnsigned   = "accepts tokens above 2^63-1"
	acceptsAnyName    = "accepts names that are no names"
	raisesOnRefusal   = "moves the mark to what it refuses"
	keepsToItself     = "does not share its marks"
	bareErrStale      = "does not say which fences"
	deafToCtx         = "does not look at its context"
	races             = "checks, and raises the mark a moment later"
	failsFirst        = "fails where two come first"
	writesFirst       = "writes and then checks"
	writesLater       = "checks, and writes a moment later"
	writesUnseen      = "writes without a look at the mark"
	writesWithoutMark = "writes without raising the mark"
)

// broken has, for each flaw, a case that has to find it.
var broken = []struct{ flaw, fails string }{
	{acceptsStale, "Rises"},
	{acceptsStale, "Concurrent"},
	{neverRaises, "Rises"},
	{bareErrStale, "Rises"},
	{acceptsTwins, "Equal"},
	{acceptsTwins, "OneOwner"},
	{refusesTwice, "Equal"},
	{refusesTwice, "Writes"},
	{foldsOwners, "Equal"},
	{ignoresDomains, "Domains"},
	{foldsDomains, "Domains"},
	{migrateForgets, "Domains"},
	{migrateCreates, "Migrate"},
	{migrateTakesAll, "Migrate"},
	{migrateLate, "Migrate"},
	{migrateRaces, "MigrateConcurrent"},
	{comparesFloats, "Digits"},
	{comparesText, "Digits"},
	{foldsResources, "Resources"},
	{stopsAtNUL, "Resources"},
	{trimsSpace, "Resources"},
	{usesHashTags, "Resources"},
	{cutsNames, "Resources"},
	{forgets, "Many"},
	{acceptsZero, "Invalid"},
	{acceptsUnsigned, "Invalid"},
	{acceptsAnyName, "Invalid"},
	{raisesOnRefusal, "Equal"},
	{raisesOnRefusal, "Domains"},
	{keepsToItself, "Shared"},
	{deafToCtx, "EndedContext"},
	{deafToCtx, "WriteEndedContext"},
	{races, "Concurrent"},
	{races, "FirstFences"},
	{races, "OneOwner"},
	{failsFirst, "FirstFences"},
	{writesFirst, "Writes"},
	{writesUnseen, "AdvanceThenWrite"},
	{writesWithoutMark, "Writes"},
	{writesWithoutMark, "ConcurrentWrites"},
	{writesLater, "AdvanceEndsWrites"},
}

const (
	flawEnv = "PADDOCK_TEST_FLAW"
	caseEnv = "PADDOCK_TEST_CASE"
)

// TestBroken runs the case that has to fail in a process of its own, since a test cannot fail and go on.
func TestBroken(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range broken {
		t.Run(b.flaw+"/"+b.fails, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(self, "-test.run=^TestSubject$/^"+b.fails+"$", "-test.v")
			cmd.Env = append(os.Environ(), flawEnv+"="+b.flaw, caseEnv+"="+b.fails)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("%s passes with a guard that %s:\n%s", b.fails, b.flaw, out)
			}
			for _, want := range []string{"--- FAIL: TestSubject/" + b.fails + " ", b.fails + " is about this rule: "} {
				if !strings.Contains(string(out), want) {
					t.Errorf("a guard that %s: the output does not have %q:\n%s", b.flaw, want, out)
				}
			}
		})
	}
}

// TestSubject is what TestBroken runs.
func TestSubject(t *testing.T) {
	flaw := os.Getenv(flawEnv)
	if flaw == "" {
		t.Skip("child process of TestBroken")
	}
	guardtest.Run(t, suite(flaw))
}

// TestHealthy runs all cases on the same guard without a flaw.
func TestHealthy(t *testing.T) {
	guardtest.Run(t, suite(""))
}

// TestAdvanceOnly is for a guard that writes nothing.
func TestAdvanceOnly(t *testing.T) {
	g := suite("")
	g.Write, g.Read = nil, nil
	guardtest.Run(t, g)
}
