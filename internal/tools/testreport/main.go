// Testreport reads the output of go test -json and prints it as go test would:
// a line for each package, and what the failed tests wrote; what they found
// stands at the end once more, where no server's log hides it. It also names the
// skipped tests and fails when one of them was skipped without a reason that
// is explained here: a suite that skips is not one that passes.
//
//	go test -json ./... | testreport
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// allowed holds the beginnings of messages with which a test may be skipped
// in CI, each with the explanation.
var allowed = []string{
	// Processes that a test binary starts from itself are no tests when the
	// binary runs for its own sake.
	"child process of ",
	// The suite's own tests run it on Lockers that lack what a case needs.
	"tester: ",
	// `make test-full` runs these: clusters that lose members, which takes long.
	"full suite: ",
}

type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	FailedBuild string
}

type test struct{ pkg, name string }

// where matches the position that testing puts before what a test logs;
// theServers is where the tests' servers log.
var (
	where      = regexp.MustCompile(`^\s*\S+\.go:\d+: `)
	theServers = regexp.MustCompile(`^\s*process\.go:\d+: `)
)

func main() {
	output := map[test][]string{}
	var skipped, found []string
	failed := false
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil {
			fmt.Println(in.Text()) // not from go test
			continue
		}
		key := test{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Print(e.Output)
		case "output":
			output[key] = append(output[key], e.Output)
		case "skip":
			if reason := skipReason(output[key]); e.Test != "" && !explained(reason) {
				skipped = append(skipped, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason))
			}
			delete(output, key)
		case "pass":
			if lines := output[key]; e.Test == "" && len(lines) > 0 {
				fmt.Print(lines[len(lines)-1]) // ok, the package, the time
			}
			delete(output, key)
		case "fail":
			failed = true
			if e.Test == "" { // with what was running when the binary died
				for running, text := range output {
					if running.pkg == e.Package && running.name != "" {
						fmt.Print(strings.Join(text, ""))
						delete(output, running)
					}
				}
			}
			fmt.Print(strings.Join(output[key], ""))
			if e.Test != "" {
				found = append(found, "FAILED "+e.Package+" "+e.Test+"\n")
				found = append(found, findings(output[key])...)
			}
			delete(output, key)
		}
	}
	if err := in.Err(); err != nil {
		fmt.Println("testreport:", err)
		failed = true
	}
	fmt.Print(strings.Join(found, ""))
	for _, s := range skipped {
		fmt.Println("SKIPPED", s)
	}
	if failed || len(skipped) > 0 {
		os.Exit(1)
	}
}

// findings returns what a test logged itself.
func findings(output []string) []string {
	var found []string
	ours := false
	for _, line := range output {
		if where.MatchString(line) {
			ours = !theServers.MatchString(line)
		} else if !strings.HasPrefix(line, "        ") {
			ours = false // a line of testing's; those of a message are indented
		}
		if ours {
			found = append(found, line)
		}
	}
	return found
}

// skipReason returns the last message of a test, which is the one of its Skip.
func skipReason(output []string) string {
	var reason string
	for _, line := range output {
		if at := where.FindString(line); at != "" {
			reason = strings.TrimSpace(line[len(at):])
		}
	}
	return reason
}

func explained(reason string) bool {
	for _, beginning := range allowed {
		if strings.HasPrefix(reason, beginning) {
			return true
		}
	}
	return false
}
